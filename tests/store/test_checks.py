"""`art db check` names each kind of inconsistency, and nothing in a store that is well; a backup is a whole store."""

import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, text, update

import art_sdk as art
from art_sdk.capture.records import Content
from art_sdk.store import Store, checks, open_store, steps
from art_sdk.store import tables as t
from art_sdk.store.database import Database
from art_sdk.store.queue import claim

from .build import call, completion, content, end, group, identity, on_postgres, on_sqlite, reward, start

Write = Callable[..., None]


def found(database: Database, home: Path | None = None) -> dict[str, int]:
    return {fault.what: fault.count for fault in checks.check(database, home)}


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "versions" / "support"
    (folder / "000001").mkdir(parents=True)
    return folder


@pytest.fixture
def well(database: Database, write: Write, versions: Path) -> Database:
    """A store in which everything has happened and all is well."""
    in_group = {"art.group.id": identity(100)}
    said = content({"role": "user", "parts": []})
    write(group(100, 1, time.time_ns()), start(1, **in_group), Content(said.hash, said.data, identity(1)))
    write(call(1, "r1", **{"art.input.messages": [said.hash]}), completion(1, "r1"), reward(1), end(1, **in_group))
    write(start(2), end(2, "failed"))
    steps.register_policy(database, "support", "base")
    claimed = claim(database, "support", owner="w", limit=1, lease_seconds=60)
    given = {"outcomes": [], "metrics": {}, "started_at": 1, "version": 1, "path": versions / "000001", "note": None}
    steps.record_step(database, "support", owner="w", groups=claimed, **given)  # type: ignore[arg-type]
    return database


def test_a_store_that_is_well_has_no_fault(well: Database, versions: Path) -> None:
    assert found(well, versions.parents[1]) == {}


def test_each_kind_of_fault_is_named_with_an_example(well: Database, write: Write, versions: Path) -> None:
    write(reward(7), completion(8, "r8"), call(9, "r9"))
    with well.write() as connection:
        connection.execute(delete(t.contents))
        connection.execute(update(t.claims).values(status="leased", owner="w", expires_at=time.time_ns() - 1))
        connection.execute(delete(t.spans).where(t.spans.c.trajectory_id == identity(2)))
        connection.execute(update(t.trajectories).where(t.trajectories.c.id == identity(2)).values(group_id="none"))
    (versions / "000001").rmdir()
    (versions / "000009").mkdir()
    assert found(well, versions.parents[1]) == {
        "rewards of no trajectory": 1,
        "completions of no trajectory": 1,
        "spans of no trajectory": 1,
        "trajectories without a root span": 1,
        "spans under a span that is not there": 1,
        "contents that are missing": 1,
        "leases that ran out": 2,
        "trajectories of a group that is not there": 1,
        "versions without files": 1,
        "folders of no version": 1,
    }
    examples = {fault.what: fault.example for fault in checks.check(well, versions.parents[1])}
    assert examples["trajectories without a root span"] == identity(2)
    assert examples["versions without files"] == str(versions / "000001")
    assert examples["folders of no version"] == str(versions / "000009")


@on_sqlite
def test_damage_in_the_file_is_found(database: Database, write: Write) -> None:
    write(start(1))
    path = Path(database.url.removeprefix("sqlite:///"))
    with database.unbound() as connection:
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    database.close()
    with sqlite3.connect(path) as raw:
        (page,) = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'faults'").fetchone()
        (size,) = raw.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 8)
    assert "damage in the file" in found(Database(database.url))


@on_sqlite
def test_a_reference_to_nothing_is_found(database: Database) -> None:
    with sqlite3.connect(database.url.removeprefix("sqlite:///")) as raw:  # which does not check them
        raw.execute("INSERT INTO claims (group_id, policy, status) VALUES ('gone', 'support', 'ready')")
    assert found(database) == {"references to nothing": 1}


@on_sqlite
def test_a_backup_is_a_whole_store_while_others_write(database: Database, write: Write, tmp_path: Path) -> None:
    for number in range(1, 200):
        write(start(number), end(number))
    stop = threading.Event()

    def go_on() -> None:
        number = 1000
        while not stop.is_set():
            write(start(number), end(number))
            number += 1

    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        checks.backup(database, tmp_path / "copy.db")
    finally:
        stop.set()
        writer.join()
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    with open_store(f"sqlite:///{tmp_path}/copy.db") as copied:
        assert {identity(number) for number in range(1, 200)} <= {run.id for run in copied.trajectories()}
        assert found(copied.database) == {}
    with pytest.raises(art.StoreError, match=r"can't write a backup to .*copy\.db: File exists"):
        checks.backup(database, tmp_path / "copy.db")
    with pytest.raises(art.StoreError, match=r"can't write a backup to .*: No such file"):
        checks.backup(database, tmp_path / "none" / "copy.db")


@on_postgres
def test_postgres_is_backed_up_by_its_own_tools(database: Database, tmp_path: Path) -> None:
    with pytest.raises(art.StoreError, match="pg_dump"):
        checks.backup(database, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_what_goes_against_the_rules_is_refused_by_the_database(database: Database, write: Write) -> None:
    write(start(1), group(100, 1))
    for table, row in (
        (t.claims, {"group_id": identity(100), "policy": "p", "status": "lost"}),
        (t.claims, {"group_id": identity(100), "policy": "p", "status": "leased"}),  # by nobody
        (t.claims, {"group_id": identity(200), "policy": "p", "status": "ready"}),  # of no group
        (t.versions, {"policy": "nobody", "version": 1, "status": "live", "created_at": 1}),
        (t.outcomes, {"trajectory_id": identity(1), "policy": "p", "step": 5, "tokens": 0, "reason": "failed"}),
        (t.outcomes, {"trajectory_id": identity(1), "policy": "p", "tokens": 0}),  # for no reason
        (t.tags, {"trajectory_id": identity(9), "tag": "good"}),
        (t.groups, {"id": identity(300), "size": 0, "status": "open", "deadline": 1}),
    ):
        with pytest.raises(art.StoreError), database.write() as connection:
            connection.execute(insert(table), [row])
    assert [run.id for run in Store(database).trajectories()] == [identity(1)]
