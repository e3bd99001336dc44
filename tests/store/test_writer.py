"""The writer brings every journal into the store: its own, and those of the dead."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

import art_sdk as art
from art_sdk import lifecycle, settings
from art_sdk.capture import journal
from art_sdk.capture.journal import frame
from art_sdk.capture.records import Record, Reward
from art_sdk.store import Store, open_store
from art_sdk.store import tables as t

from .build import end, identity, on_sqlite, reward, start

Stored = Callable[[], Store]
Locked = Callable[[], AbstractContextManager[None]]


def journals(home: Path) -> list[Path]:
    return sorted((home / "journal").glob("*.journal"))


def orphan(home: Path, *records: Record, name: str = "0-1-abc-0000", tail: bytes = b"") -> Path:
    """The journal of a process that is no more."""
    folder = home / "journal"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.journal"
    path.write_bytes(b"".join(map(frame, records)) + tail)
    return path


def wake() -> None:
    """Make this process capture something, so that its writer runs."""
    art.reward(0.0, trajectory_id="e" * 32)


def test_what_a_dead_process_left_is_drained_and_what_it_had_begun_is_abandoned(stored: Stored, home: Path) -> None:
    path = orphan(home, start(1), start(2), end(2), reward(1), tail=frame(end(1))[:-5])
    wake()
    runs = {int(run.id, 16): run for run in stored().trajectories()}
    assert (runs[1].status, runs[1].reward, runs[2].status) == ("abandoned", 1.0, "finished")
    assert not path.exists()


def test_corrupt_records_are_skipped_and_counted_in_the_log(
    stored: Stored, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = [frame(end(number)) for number in (1, 2, 3)]
    path = orphan(home)
    path.write_bytes(good[0] + good[1][:-1] + b"\0" + b"junk" * 10 + good[2])
    wake()
    assert sorted(int(run.id, 16) for run in stored().trajectories()) == [1, 3]
    assert "1 unreadable records were skipped" in caplog.text


@pytest.mark.parametrize("ending", [False, True], ids=["", "while the interpreter ends"])
def test_a_journal_larger_than_one_read_is_drained_whole(
    stored: Stored, home: Path, monkeypatch: pytest.MonkeyPatch, ending: bool
) -> None:
    monkeypatch.setattr("art_sdk.store.writer._READ_BYTES", 1000)
    begin, refused = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if ending and thread.name == "art-reader":
            refused.append(thread)
            raise RuntimeError("can't create new thread at interpreter shutdown")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    big = end(99, note="x" * 5000)
    orphan(home, *map(end, range(1, 20)), big, *map(end, range(20, 40)))
    wake()
    assert len(list(stored().trajectories())) == 40
    assert bool(refused) == ending


def test_segments_are_drained_and_deleted_as_they_fill(
    stored: Stored, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_JOURNAL_SEGMENT_BYTES", "4096")
    settings.reset()

    @art.trajectory
    def handle(n: int) -> str:
        return "x" * 500

    for n in range(40):
        handle(n)
    assert len(list(stored().trajectories())) == 40
    assert len(journals(home)) <= 2
    opened = journal.current()
    assert opened is not None
    assert not opened._full


def test_a_segment_that_has_just_been_opened_is_drained_and_kept(stored: Stored, home: Path) -> None:
    wake()
    stored()
    opened = journal.current()
    assert opened is not None
    # For a moment a new segment has its name and the journal does not know it yet.
    fresh = opened.directory / f"{opened.prefix}-0001.journal"
    fresh.write_bytes(frame(end(1)))
    assert len(list(stored().trajectories())) == 1
    assert fresh.exists()


@pytest.mark.parametrize("read_bytes", [1 << 20, 100], ids=["in one batch", "a batch for each"])
def test_a_record_that_the_store_refuses_stops_no_other(
    stored: Stored, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr("art_sdk.store.writer._READ_BYTES", read_bytes)
    poison: list[Record] = [
        Reward(identity(1), identity(1), None, "reward", 1.0, "code", 2**63),
        end(7, **{"art.metadata": "{no json"}),
        start(8, **{"art.train": "perhaps"}),
    ]
    orphan(home, end(1), *poison, end(2), reward(2, 0.5))
    wake()
    runs = {int(run.id, 16): run.reward for run in stored().trajectories()}
    assert runs == {1: None, 2: 0.5}
    assert "the store refused a Reward" in caplog.text
    assert "the store refused a SpanEnd" in caplog.text


def test_an_orphan_that_cannot_be_read_holds_nobody_up(
    stored: Stored, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "journal").mkdir(mode=0o700)
    (home / "journal" / "0-1-abc-0000.journal").mkdir()
    orphan(home, end(1), name="0-2-abc-0000")
    wake()
    assert len(list(stored().trajectories())) == 1
    assert "is left alone" in caplog.text


def test_files_of_others_in_the_folder_are_left_alone(stored: Stored, home: Path) -> None:
    (home / "journal").mkdir(mode=0o700)
    (home / "journal" / "notes.txt").write_text("mine")
    wake()
    stored()
    assert (home / "journal" / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_store_that_is_locked_for_two_seconds_loses_nothing(stored: Stored, home: Path, locked: Locked) -> None:
    @art.trajectory
    def handle(n: int) -> None: ...

    handle(0)
    assert art.flush(10)
    with locked():
        before = time.monotonic()
        for n in range(1, 20):
            handle(n)
        assert time.monotonic() - before < 1, "the agent must not wait for the store"
        assert art.flush(0.2) is False
        time.sleep(max(0.0, 2 - (time.monotonic() - before)))
    assert len(list(stored().trajectories())) == 20


def test_flush_gives_up_after_its_timeout_and_works_later(home: Path, locked: Locked) -> None:
    wake()
    assert art.flush(10)
    with locked():
        wake()
        before = time.monotonic()
        assert art.flush(0.1) is False
        assert 0.05 < time.monotonic() - before < 1
    assert art.flush(10) is True


@on_sqlite
def test_a_store_that_cannot_be_opened_is_said_once_and_used_when_it_is_back(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "art.db").rename(home / "kept.db")
    (home / "art.db").write_text("not a database, " * 100)

    @art.trajectory
    def handle() -> int:
        return 3

    assert handle() == 3
    assert art.flush(0.7) is False
    assert len([record for record in caplog.records if "records wait in" in record.getMessage()]) == 1
    (home / "art.db").unlink()
    (home / "kept.db").rename(home / "art.db")
    assert art.flush(10) is True
    with open_store() as store:
        assert [run.output for run in store.trajectories()] == [3]
    assert "the trajectory store is back" in caplog.text


@on_sqlite
def test_a_missing_driver_leaves_the_records_in_the_journal(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ART_STORE_URL", "postgresql://u:hunter2@127.0.0.1:9/db")
    settings.reset()
    monkeypatch.setitem(sys.modules, "psycopg", None)

    @art.trajectory
    def handle() -> int:
        return 3

    assert handle() == 3
    assert art.flush(0.3) is False
    assert "[postgres]'" in caplog.text
    assert "hunter2" not in caplog.text
    assert art.shutdown(0.5) is False
    assert journals(home)


@on_sqlite
def test_the_store_stays_where_it_was_when_the_program_changes_its_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)
    monkeypatch.setenv("ART_HOME", "art")
    settings.reset()

    @art.trajectory
    def handle() -> None:
        os.chdir("/")

    handle()
    assert art.flush(10)
    monkeypatch.chdir(home.parent)
    with open_store(f"sqlite:///{home}/art.db") as store:
        assert len(list(store.trajectories())) == 1


def test_a_drained_position_is_where_the_next_writer_goes_on(stored: Stored, home: Path) -> None:
    wake()
    store = stored()
    opened = journal.current()
    assert opened is not None
    with store.database.read() as connection:
        row = connection.execute(select(t.journals)).one()
    assert (row.file, row.position) == (opened.path.name, opened.path.stat().st_size)
    assert lifecycle.shutdown(10)
    with store.database.read() as connection:
        assert connection.execute(select(t.journals)).all() == []
    assert journals(home) == []


_WRITER = """
import sys, json
import art_sdk as art

@art.trajectory
def handle(who, n):
    art.reward(n)
    return [who] * 20

sys.stdin.readline()
for n in range(100):
    handle(sys.argv[1], n)
print(json.dumps(art.flush(30)))
"""


@pytest.mark.slow
@on_sqlite
def test_two_processes_write_at_once_and_nothing_is_lost(home: Path, empty_url: str) -> None:
    # They race for the migration too.
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, who],
            env=os.environ | {"ART_HOME": str(home), "ART_STORE_URL": empty_url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for who in "ab"
    ]
    answers: list[Any] = [None, None]

    def talk(index: int) -> None:
        answers[index] = workers[index].communicate("\n", timeout=60)

    threads = [threading.Thread(target=talk, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [json.loads(out) for out, _ in answers] == [True, True], answers
    assert [err for _, err in answers] == ["", ""]
    with open_store(empty_url) as store:
        seen = {(run.input["who"], run.input["n"], run.reward, run.status) for run in store.trajectories()}
    assert seen == {(who, n, float(n), "finished") for who in "ab" for n in range(100)}
    assert journals(home) == []
