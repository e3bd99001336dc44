"""What goes wrong around a store: nothing that was captured is lost, and the user's code is not held up."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select

import art_sdk as art
from art_sdk import lifecycle
from art_sdk.capture.journal import Journal
from art_sdk.capture.records import SpanEnd
from art_sdk.store import Store, open_store
from art_sdk.store import tables as t
from art_sdk.store.database import Database

from .build import end, identity, on_sqlite, reward, span_identity, start

Stored = Callable[[], Store]


@art.trajectory
def handle(n: Any) -> Any:
    art.reward(1.0)
    return n


@pytest.fixture
def pragma() -> Iterator[list[str]]:
    """What each SQLite connection is told while it stands here."""
    told: list[str] = []

    def tell(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only = OFF")
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute("PRAGMA max_page_count = 1073741823")
        for each in told:
            connection.execute(each.format(pages=pages))

    def on_checkout(connection: sqlite3.Connection, *_: Any) -> None:
        tell(connection)

    event.listen(Engine, "checkout", on_checkout)
    yield told
    event.remove(Engine, "checkout", on_checkout)


@on_sqlite
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("PRAGMA max_page_count = {pages}", "disk is full: make room on its disk"),
        ("PRAGMA query_only = ON", "readonly database: make the file and its folder writable"),
    ],
)
def test_a_disk_that_is_full_or_a_file_that_is_read_only_is_said_and_waited_for(
    stored: Stored, home: Path, pragma: list[str], fault: str, said: str
) -> None:
    handle(0)
    stored()
    pragma.append(fault)
    for n in range(1, 200):
        assert handle(n) == n
    assert art.flush(0.5) is False
    assert said in str(art.health().store_error)
    pragma.clear()
    assert art.flush(30)
    assert sorted(run.output for run in stored().trajectories()) == list(range(200))


@pytest.mark.slow
@on_sqlite
def test_a_damaged_file_is_said_and_a_backup_goes_on_with_what_waited(
    stored: Stored, home: Path, tmp_path: Path
) -> None:
    for n in range(50):
        handle(n)
    stored().close()
    lifecycle.shutdown()
    shutil.copy(home / "art.db", tmp_path / "backup.db")
    with (home / "art.db").open("r+b") as file:
        file.write(b"\xff" * 5000)
    for n in range(50, 60):
        assert handle(n) == n
    assert art.flush(0.5) is False
    assert "not a database: move the file away" in str(art.health().store_error)
    lifecycle.shutdown()
    for file in home.glob("art.db*"):
        file.unlink()
    shutil.copy(tmp_path / "backup.db", home / "art.db")
    art.init()
    assert art.flush(30)
    assert sorted(run.output for run in stored().trajectories()) == list(range(60))


@pytest.mark.slow
def test_a_stranger_who_locks_the_store_for_half_a_minute_holds_up_nobody(
    stored: Stored, locked: Callable[[], AbstractContextManager[Any]]
) -> None:
    handle(0)
    stored()
    with locked():
        until = time.monotonic() + 31
        slowest, n = 0.0, 1
        while time.monotonic() < until:
            before = time.perf_counter()
            handle(n)
            slowest = max(slowest, time.perf_counter() - before)
            n += 1
            time.sleep(0.05)
        assert slowest < 10, "the agent must not wait for the store"
    assert art.flush(60)
    assert sorted(run.output for run in stored().trajectories()) == list(range(n))


@pytest.mark.slow
def test_a_trajectory_of_fifty_megabytes_is_kept_whole(stored: Stored) -> None:
    large = random.Random(0).randbytes(25_000_000).hex()
    handle(large)
    handle("small")
    assert art.flush(120)
    outputs = {len(run.output): run.output for run in stored().trajectories()}
    assert outputs == {50_000_000: large, 5: "small"}


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "\udfff", "\0", "\x1f\x7f\u2028\uffff"])
def test_characters_that_no_database_takes_are_written_out(stored: Stored, text: str) -> None:
    @art.trajectory(name=text, metadata={text: text}, group=text)
    def agent(given: str) -> dict[str, str]:
        art.reward(1.0, name=text)
        raise ValueError(text)

    with pytest.raises(ValueError):
        agent(text)
    (run,) = stored().trajectories()
    shown = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    assert (run.name, run.input, run.error) == (shown, {"given": shown}, f"ValueError: {shown}")
    assert [each["name"] for each in run.rewards] == [shown]
    assert run.details["metadata"] == {shown: shown}


@pytest.mark.slow
def test_a_million_spans_in_one_trajectory(database: Database, write: Callable[..., None]) -> None:
    write(start(1))
    for begin in range(0, 1_000_000, 20_000):
        write(
            *(
                SpanEnd(identity(1), span_identity(n + 2), span_identity(1), "step", n, n + 1, {}, None)
                for n in range(begin, begin + 20_000)
            )
        )
    write(end(1), reward(1))
    (run,) = Store(database).trajectories()
    assert (run.status, run.reward) == ("finished", 1.0)
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(t.spans)).scalar_one() == 1_000_001
    Store(database).delete(identity(1))
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(t.spans)).scalar_one() == 0


DRAIN = """
import sys, time
from pathlib import Path
from art_sdk.capture.journal import Journal
from art_sdk.settings import Settings
from art_sdk.store import writer

writer._READ_BYTES = 200_000  # many transactions
folder = Path(sys.argv[1])
running = writer.Writer(Journal(folder / "journal", 1 << 30), Settings(home=folder, store_url=sys.argv[2]))
print("begun", flush=True)
running.start()
while len(list((folder / "journal").glob("left*"))):
    time.sleep(0.01)
running.stop(60)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_in_the_middle_is_gone_on_from(database: Database, tmp_path: Path) -> None:
    left = Journal(tmp_path / "journal", 1 << 30)
    for n in range(1, 4001):
        left.append(start(n, note="x" * 300), end(n, note="x" * 300), reward(n, 0.5))
    left.close()
    left.path.rename(left.path.with_name("left-0000.journal"))
    chance = random.Random(1)
    killed = 0
    for attempt in range(8):
        command = [sys.executable, "-c", DRAIN, str(tmp_path), database.url]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        if attempt < 7:
            time.sleep(chance.uniform(0.05, 0.25))
            child.send_signal(signal.SIGKILL)
        child.wait()
        killed += child.returncode == -signal.SIGKILL
        child.stdout.close()
    assert killed >= 3
    with open_store(database.url) as store:
        runs = list(store.trajectories())
    assert {run.id for run in runs} == {identity(n) for n in range(1, 4001)}
    assert {(run.status, run.reward) for run in runs} == {("finished", 0.5)}
