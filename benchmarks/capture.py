"""What capture costs and what it loses, beside other tracing libraries in their usual production set-up.

Five measurements: the time that a run of a LangGraph agent and an LLM call take longer, spans lost to a slow store,
calls lost to `kill -9`, memory, and bytes stored. Each peer runs in a virtual environment of its own
(`capture_peers/environments.py`) and is switched on as its pages say (`capture_peers/candidates.py`). One that can't
be installed, or that records nothing, is reported as skipped, with the reason.

Times are taken one process after another, in rounds over all candidates, so that a machine that gets slower gets
slower for all. Prints tables and, last, one JSON line. `make bench NAME=capture`, about 15 minutes on two cores;
`ARGS=--quick` for a look, `ARGS="--quick --only ours"` while working on capture.
"""

import argparse
import json
import os
import platform
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from art_sdk.store import open_store
from benchmarks.capture_peers.environments import PEERS, CannotInstall, interpreter
from benchmarks.capture_peers.servers import CALL_ID, Sink, server

SUBJECT = Path(__file__).parent / "capture_peers" / "subject.py"
SHARED = ("langchain-core", "langchain-openai", "langgraph", "openai", "opentelemetry-sdk", "sqlalchemy", "langsmith")
FOREIGN = re.compile("ART_|OTEL_|LANGSMITH_|LANGCHAIN_|LANGFUSE_|MLFLOW_|TRACELOOP_|OPENAI_|PYTHON")
"""Variables of the environment that would change what is measured."""
SLOW_STORE_SECONDS = 0.05


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = 7
    """Processes of each candidate that are timed, in turn."""
    runs: int = 120
    """Agent runs in each."""
    calls: int = 50
    """LLM calls of each size in each."""
    message_bytes: tuple[int, ...] = (2_000, 20_000, 200_000)
    spans: int = 20_000
    kills: int = 100
    peer_kills: int = 10
    kills_per_store: int = 10
    alive: tuple[float, float] = (0.1, 3.0)
    """A process is killed at a random moment between so many seconds after capture was switched on in it."""
    peer_alive: tuple[float, float] = (0.1, 6.0)
    """Longer: a batch span processor sends every 5 s."""
    trajectories: int = 10_000
    turns: int = 200
    turn_bytes: int = 2_000


QUICK = Sizes(rounds=1, runs=40, calls=15, spans=4_000, kills=10, peer_kills=1, trajectories=300, turns=40)


@dataclass
class Bench:
    """Runs the subject under a candidate's interpreter; `skipped` says which peers dropped out, and why."""

    api: str
    sink: Sink
    only: set[str]
    interpreters: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def set_up(self) -> None:
        self.interpreters = {"none": sys.executable, "ours": sys.executable}
        for peer in PEERS:
            if self.only and peer not in self.only:
                continue
            try:
                self.interpreters[peer] = str(interpreter(peer, PEERS[peer]))
            except CannotInstall as error:
                self.skipped[peer] = str(error)

    @property
    def peers(self) -> list[str]:
        return [peer for peer in self.interpreters if peer in PEERS and peer not in self.skipped]

    @property
    def candidates(self) -> list[str]:
        return ["none", "ours", *self.peers]

    def measure(self, measurement: str, candidate: str, home: Path, **sizes: Any) -> dict[str, Any]:
        """What the subject printed. A peer that fails is skipped from here on and gives nothing; ours may not fail."""
        print(f"{measurement}: {candidate}", file=sys.stderr)
        given = {"candidate": candidate, "api": self.api, "sink": self.sink.url, "home": str(home), **sizes}
        done = subprocess.run(
            [self.interpreters[candidate], str(SUBJECT), measurement, json.dumps(given)],
            cwd=home,
            env={name: value for name, value in os.environ.items() if not FOREIGN.match(name)},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            if candidate not in PEERS:
                sys.exit(f"{measurement} of {candidate} failed:\n{done.stderr}")
            self.skipped[candidate] = f"{measurement}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
            return {}
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it runs, not for figures")
    parser.add_argument("--only", action="append", choices=["ours", *PEERS], default=[], help="none, ours and these")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes()
    with server("api") as api, server("sink") as sink:
        bench = Bench(api, Sink(sink), set(options.only))
        bench.set_up()
        result = measure_times(bench, sizes)
        result |= measure_losses(bench, sizes)
        result |= measure_untimed(bench, sizes)
        if (mlflow := result.pop("mlflow_lost", None)) is not None:
            result["peer_lost_of_20000"]["mlflow"] = mlflow
        result |= measure_episode(bench, sizes)
        print_losses(result, sizes)
    result |= {"skipped": bench.skipped, "sizes": asdict(sizes), "machine": machine(), "versions": versions(bench)}
    for peer, why in bench.skipped.items():
        print(f"skipped: {peer}: {why}")
    print(json.dumps(result))


# 1. Time


@dataclass
class Times:
    """What the timed processes gave, one row a round for each candidate; `spans` it recorded of a run."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[str, float] = field(default_factory=lambda: {"none": 0.0})

    def milliseconds(self, candidate: str, *path: str) -> float:
        return 1e3 * statistics.median(_at(row, path) for row in self.rows[candidate])

    def added(self, candidate: str, *path: str) -> float:
        """Milliseconds more than without capture in the same round."""
        pairs = zip(self.rows[candidate], self.rows["none"], strict=True)
        return round(1e3 * statistics.median(_at(row, path) - _at(none, path) for row, none in pairs), 3)


def _at(row: Any, path: Iterable[str]) -> float:
    for key in path:
        row = row[key]
    return float(row)


def measure_times(bench: Bench, sizes: Sizes) -> dict[str, Any]:
    times = take_times(bench, sizes)
    print_times(times, bench.candidates, sizes)
    by_size = [str(size) for size in sizes.message_bytes]

    def per_call(candidate: str, clock: str) -> dict[str, int]:
        return {size: round(1e3 * times.added(candidate, "calls", size, clock)) for size in by_size}

    peers = {peer: times.added(peer, "run") for peer in bench.peers}
    best = min(peers, key=peers.__getitem__, default=None)
    return {
        "added_ms": times.added("ours", "run"),
        "added_ms_best_peer": peers[best] if best else None,
        "best_peer": best,
        "added_ms_mean": times.added("ours", "run_mean"),
        "added_cpu_ms": times.added("ours", "run_cpu"),
        "none_ms": round(times.milliseconds("none", "run"), 3),
        "peer_added_ms": peers,
        "peer_added_ms_mean": {peer: times.added(peer, "run_mean") for peer in bench.peers},
        "caller_us_per_call": per_call("ours", "wall"),
        "caller_cpu_us_per_call": per_call("ours", "cpu"),
        "peer_caller_us_per_call": {peer: per_call(peer, "wall") for peer in bench.peers},
    }


def take_times(bench: Bench, sizes: Sizes) -> Times:
    times = Times()
    warm_up, calls = 20, sizes.calls * len(sizes.message_bytes)
    how_much = {"warm_up": warm_up, "runs": sizes.runs, "calls": sizes.calls, "message_bytes": sizes.message_bytes}
    for _ in range(sizes.rounds):
        for candidate in bench.candidates:
            with fresh_home() as home:
                bench.sink.reset()
                found = bench.measure("times", candidate, home, **how_much)
                if not found:
                    continue
                times.rows[candidate].append(found)
                if candidate != "none":
                    spans = (stored_spans(bench, candidate, home) - calls) / (warm_up + sizes.runs)
                    times.spans[candidate] = round(spans, 1)
                    if spans <= 0 and candidate in PEERS:
                        bench.skipped[candidate] = "it recorded nothing"
    return times


def print_times(times: Times, candidates: list[str], sizes: Sizes) -> None:
    print(f"\n{'':14} {'ms a run':>9} {'added':>7} {'mean +':>7} {'CPU +':>7} {'spans':>6}   added µs a call (its CPU)")
    for name in candidates:
        added = [times.added(name, kind) for kind in ("run", "run_mean", "run_cpu")]
        calls = [
            f"{size // 1000} kB {1e3 * times.added(name, 'calls', str(size), 'wall'):6.0f} "
            f"({1e3 * times.added(name, 'calls', str(size), 'cpu'):.0f})"
            for size in sizes.message_bytes
        ]
        columns = " ".join(f"{value:7.2f}" for value in added)
        run, spans = times.milliseconds(name, "run"), times.spans[name]
        print(f"{name:14} {run:9.2f} {columns} {spans:6}   {'   '.join(calls)}")
    print("(mean +: added to the mean; CPU +: CPU ms of the whole process, its background threads included)")


# 2. Spans lost to a slow store


def measure_losses(bench: Bench, sizes: Sizes) -> dict[str, Any]:
    lost: dict[str, int] = {}
    for candidate in bench.candidates[1:]:
        if candidate != "mlflow":
            lost |= lost_spans(bench, candidate, sizes)
    return {"lost_of_20000": lost.pop("ours"), "peer_lost_of_20000": lost}


def lost_spans(bench: Bench, candidate: str, sizes: Sizes) -> dict[str, int]:
    with fresh_home() as home:
        if candidate != "mlflow":
            bench.sink.reset(SLOW_STORE_SECONDS)
        made = bench.measure("spans", candidate, home, spans=sizes.spans, threads=8, delay=SLOW_STORE_SECONDS)
        return {candidate: made["spans"] - stored_spans(bench, candidate, home)} if made else {}


# 3. Calls lost to kill -9


def measure_kills(bench: Bench, sizes: Sizes) -> dict[str, Any]:
    returned: dict[str, int] = {}
    lost: dict[str, int] = {}
    left_running = 0
    for candidate in bench.candidates[1:]:
        ours = candidate == "ours"
        kills, alive = (sizes.kills, sizes.alive) if ours else (sizes.peer_kills, sizes.peer_alive)
        for start in range(0, kills, sizes.kills_per_store):
            count = min(sizes.kills_per_store, kills - start)
            with fresh_home() as home:
                bench.sink.reset()
                found = bench.measure("kills", candidate, home, kills=count, seed=start, alive=alive)
                if not found:
                    continue
                if ours:
                    drain(home)
                    left_running += running(home)
                calls = set(found["returned"])
                returned[candidate] = returned.get(candidate, 0) + len(calls)
                lost[candidate] = lost.get(candidate, 0) + len(calls - stored_calls(bench, candidate, home))
    return {
        "kill9_lost": lost.pop("ours"),
        "kill9_returned": returned.pop("ours"),
        "kill9_runs": sizes.kills,
        "kill9_left_running": left_running,
        "peer_kill9_lost": lost,
        "peer_kill9_returned": returned,
        "peer_kill9_runs": sizes.peer_kills,
    }


def drain(home: Path) -> None:
    """What the next process on this machine does, whatever it is."""
    program = "import art_sdk as art; art.init(); assert art.flush(300)"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "ART_HOME": str(home)}, check=True)


def running(home: Path) -> int:
    """Trajectories that still say `running`, though their process is dead."""
    with closing(open_store(f"sqlite:///{home / 'art.db'}")) as store:
        return sum(1 for _ in store.trajectories(status="running"))


# 4. Memory, and what else may share the machine because nothing of it is timed


def measure_untimed(bench: Bench, sizes: Sizes) -> dict[str, Any]:
    """The kills, and beside them what takes minutes: memory, and MLflow on a slow store."""
    with ThreadPoolExecutor() as pool:
        grown = {name: pool.submit(grown_mb, bench, name, sizes) for name in ("none", "ours")}
        slow = pool.submit(lost_spans, bench, "mlflow", sizes) if "mlflow" in bench.peers else None
        found = measure_kills(bench, sizes)
    mlflow = {"mlflow_lost": slow.result().get("mlflow")} if slow else {}
    return found | mlflow | {"growth_mb": grown["ours"].result(), "growth_mb_none": grown["none"].result()}


def grown_mb(bench: Bench, candidate: str, sizes: Sizes) -> float:
    with fresh_home() as home:
        found = bench.measure("memory", candidate, home, trajectories=sizes.trajectories)
        return round(float(found["after_all"] - found["after_tenth"]), 2)


# 5. Bytes of an episode


def measure_episode(bench: Bench, sizes: Sizes) -> dict[str, Any]:
    """Bytes of the store's file over those of what was said, at a quarter, a half and all of the turns."""
    ratios = {}
    for turns in (sizes.turns // 4, sizes.turns // 2, sizes.turns):
        with fresh_home() as home:
            said = bench.measure("episode", "ours", home, turns=turns, message_bytes=sizes.turn_bytes)["said"]
            with closing(sqlite3.connect(home / "art.db")) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            ratios[turns] = round((home / "art.db").stat().st_size / said, 3)
    return {"episode_bytes_ratio": ratios[sizes.turns], "episode_bytes_ratio_by_turns": ratios}


def print_losses(result: dict[str, Any], sizes: Sizes) -> None:
    lost = {"ours": result["lost_of_20000"], **result["peer_lost_of_20000"]}
    killed = {"ours": result["kill9_lost"], **result["peer_kill9_lost"]}
    returned = {"ours": result["kill9_returned"], **result["peer_kill9_returned"]}
    print(f"\n{'':14} {'lost of':>8} {sizes.spans:<7,}   lost to kill -9, of the calls that had returned")
    for name in lost | killed:
        of = f"{killed[name]:7,} of {returned[name]:,}" if name in killed else ""
        print(f"{name:14} {lost.get(name, '-'):>8} {'':7} {of}")
    print(
        f"({sizes.spans:,} spans from 8 threads, 50 ms for a batch; {sizes.kills} kills, {sizes.peer_kills} for a peer)"
    )
    print(
        f"\nmemory: {result['growth_mb']} MB more after {sizes.trajectories:,} trajectories than after a tenth of them "
        f"({result['growth_mb_none']} without capture)"
    )
    for turns, ratio in result["episode_bytes_ratio_by_turns"].items():
        print(f"episode of {turns} turns: {ratio} bytes stored for a byte that was said")


# What arrived


@contextmanager
def fresh_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
        yield Path(folder)


def stored_spans(bench: Bench, candidate: str, home: Path) -> int:
    """Spans that ended and are in the candidate's store or sink."""
    queries = {
        "ours": (home / "art.db", "SELECT count(*) FROM spans WHERE ended_at IS NOT NULL"),
        "mlflow": (home / "mlflow.db", "SELECT count(*) FROM spans"),
    }
    if candidate not in queries:
        return int(bench.sink.received()["spans"])
    file, query = queries[candidate]
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute(query).fetchone()[0])


def stored_calls(bench: Bench, candidate: str, home: Path) -> set[str]:
    """Ids of the kill test's calls whose answer is in the candidate's store or sink."""
    if candidate == "ours":
        return set(_calls_of(home))
    if candidate == "mlflow":
        files = [file.read_bytes() for file in home.rglob("*") if file.is_file()]
        return {call.decode() for data in files for call in CALL_ID.findall(data)}
    return set(bench.sink.received()["calls"])


def _calls_of(home: Path) -> Iterator[str]:
    with closing(open_store(f"sqlite:///{home / 'art.db'}")) as store:
        for run in store.trajectories():
            for span in run.spans:
                if span.operation == "chat" and span.ended_at is not None:
                    answer = json.dumps(span.attributes.get("gen_ai.output.messages")).encode()
                    yield from (call.decode() for call in CALL_ID.findall(answer))


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def versions(bench: Bench) -> dict[str, str]:
    own = dict(PEERS[peer][0].split("==") for peer in bench.peers if PEERS[peer])
    shared = {name: version(name) for name in (*SHARED, "art-agent-sdk")}
    return {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, **shared, **own}


if __name__ == "__main__":
    main()
