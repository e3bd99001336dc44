"""`init`, `flush` and `shutdown`: capture drains itself, at any time and at exit."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import art_sdk as art
from art_sdk import lifecycle
from art_sdk.capture import journal
from art_sdk.store import Store, open_store


@art.trajectory
def handle(n: int) -> int:
    art.reward(1.0)
    return n


def run(code: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"ART_HOME": str(home)} | environment,
        capture_output=True,
        text=True,
    )


def outputs(home: Path) -> list[int]:
    with open_store(f"sqlite:///{home}/art.db") as store:
        return sorted(run.output for run in store.trajectories())


def test_nothing_starts_before_the_first_record(home: Path) -> None:
    assert art.flush() is True
    assert art.shutdown() is True
    assert journal.current() is None
    assert not (home / "journal").exists()


def test_flush_brings_all_that_was_captured_into_the_store(stored: Callable[[], Store]) -> None:
    for n in range(5):
        handle(n)
    assert len(list(stored().trajectories())) == 5
    handle(5)
    assert len(list(stored().trajectories())) == 6


def test_shutdown_leaves_no_journal_and_capture_may_begin_again(home: Path) -> None:
    handle(1)
    assert art.shutdown() is True
    assert list((home / "journal").iterdir()) == []
    assert art.shutdown() is True
    handle(2)
    assert art.shutdown() is True
    assert outputs(home) == [1, 2]


def test_a_trajectory_that_runs_through_a_shutdown_is_finished_after_it(home: Path) -> None:
    @art.trajectory
    def patient() -> int:
        assert art.shutdown()
        return 7

    assert patient() == 7
    assert art.flush(10)
    with open_store() as store:
        (found,) = store.trajectories()
    assert (found.status, found.output) == ("finished", 7)


def test_a_program_that_just_ends_loses_nothing(home: Path) -> None:
    code = """
import art_sdk as art
@art.trajectory
def handle(n): return n
for n in range(20): handle(n)
"""
    done = run(code, home)
    assert (done.returncode, done.stderr) == (0, "")
    assert outputs(home) == list(range(20))
    assert list((home / "journal").iterdir()) == []


def test_a_program_that_raises_loses_nothing(home: Path) -> None:
    code = """
import art_sdk as art
@art.trajectory
def handle(n): return n
handle(1)
raise SystemExit(3)
"""
    assert run(code, home).returncode == 3
    assert outputs(home) == [1]


@pytest.mark.slow
def test_a_program_whose_store_is_away_ends_in_good_time_and_keeps_its_journal(home: Path) -> None:
    code = """
import art_sdk as art
@art.trajectory
def handle(n): return n
handle(1)
import atexit
from art_sdk import lifecycle
atexit.unregister(lifecycle.shutdown)
atexit.register(lifecycle.shutdown, 0.3)
"""
    done = run(code, home, ART_STORE_URL="postgresql://u:hunter2@127.0.0.1:9/db?connect_timeout=1")
    assert done.returncode == 0
    assert "records wait in" in done.stderr
    assert "hunter2" not in done.stderr
    assert len(list((home / "journal").glob("*.journal"))) == 1
    handle(2)
    assert art.flush(10)
    assert outputs(home) == [1, 2]


def test_init_chooses_the_store_and_the_policy(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ART_STORE_URL", "ART_POLICY"):
        monkeypatch.setenv(name, "")  # so that what init sets is undone
    art.init(store=f"sqlite:///{tmp_path}/other.db", policy="support")
    assert (tmp_path / "other.db").exists()
    handle(1)
    assert art.flush(10)
    with open_store() as store:
        assert [run.policy for run in store.trajectories()] == ["support"]
    with open_store(f"sqlite:///{home}/art.db") as store:
        assert list(store.trajectories()) == []


def test_init_raises_where_the_store_cannot_be_opened(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_STORE_URL", "")
    with pytest.raises(art.StoreError, match="must be sqlite:/// or postgresql://, got mysql://"):
        art.init(store="mysql://host/db")


@pytest.mark.slow
def test_a_forked_child_that_ends_by_itself_leaves_its_parents_store_alone(home: Path) -> None:
    code = """
import gc, os
import art_sdk as art
@art.trajectory
def handle(n): return n
handle(0)
assert art.flush(10)
for n in range(1, 4):
    child = os.fork()
    if child == 0:
        gc.collect()
        handle(n)
        raise SystemExit(0)
    assert os.waitpid(child, 0)[1] == 0
    handle(10 * n)
    assert art.flush(10)
"""
    done = run(code, home)
    assert (done.returncode, done.stderr) == (0, "")
    assert outputs(home) == [0, 1, 2, 3, 10, 20, 30]
    assert lifecycle.flush()
