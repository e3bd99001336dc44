"""However a process ends or stops, every call that had returned is kept, and the store says how the run ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runner import invoke

import art_sdk as art
from art_sdk.capture import guard, journal
from art_sdk.capture.records import Reward, SpanEnd
from art_sdk.store import Store

Stored = Callable[[], Store]

AGENT = """
import os, sys, time
import art_sdk as art

@art.tool
def step(n): return n

def tell(n): os.write(1, b"%d\\n" % n)

@art.trajectory
def handle():
    for n in range(1_000_000):
        step(n)
        tell(n)
        {after}

handle()
"""


@pytest.fixture
def agent(home: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def start(after: str = "pass") -> subprocess.Popen[bytes]:
        code = AGENT.format(after=after)
        environment = os.environ | {"ART_HOME": str(home)}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[bytes]) -> int:
    """How many steps had returned to the agent when it ended."""
    assert process.stdout is not None
    return len(process.stdout.read().split())


def kept(stored: Stored) -> tuple[str, int]:
    art.init()
    (run,) = stored().trajectories()
    steps = [span for span in run.spans if span.ended_at is not None and span.operation == "execute_tool"]
    assert [span.attributes["gen_ai.tool.call.result"] for span in steps] == list(range(len(steps)))
    return run.status, len(steps)


def after_some_steps(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return len([process.stdout.readline() for _ in range(20)])


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_loses_no_step_that_had_returned(
    agent: Callable[..., subprocess.Popen[bytes]], stored: Stored, kill: signal.Signals
) -> None:
    process = agent()
    before = after_some_steps(process)
    process.send_signal(kill)
    returned = before + told(process)
    status, steps = kept(stored)
    assert status == "abandoned"
    assert returned <= steps <= returned + 1


def test_ctrl_c_is_a_run_that_was_cancelled(agent: Callable[..., subprocess.Popen[bytes]], stored: Stored) -> None:
    process = agent()
    before = after_some_steps(process)
    process.send_signal(signal.SIGINT)
    returned = before + told(process)
    status, steps = kept(stored)
    assert status == "cancelled"
    assert returned <= steps <= returned + 1


def test_os_exit_loses_nothing(agent: Callable[..., subprocess.Popen[bytes]], stored: Stored) -> None:
    process = agent("if n == 30: os._exit(3)")
    assert told(process) == 31
    assert kept(stored) == ("abandoned", 31)


def test_sys_exit_is_a_failed_run(agent: Callable[..., subprocess.Popen[bytes]], stored: Stored) -> None:
    process = agent("if n == 5: sys.exit(3)")
    assert told(process) == 6
    assert kept(stored) == ("failed", 6)


def test_a_frozen_process_keeps_its_journal_and_goes_on(
    agent: Callable[..., subprocess.Popen[bytes]], stored: Stored, home: Path
) -> None:
    """As a serverless platform stops a process between two requests."""
    process = agent("time.sleep(0.001)")
    after_some_steps(process)
    process.send_signal(signal.SIGSTOP)
    art.init()  # another process drains the same folder meanwhile
    (run,) = stored().trajectories()
    assert run.status == "running"
    process.send_signal(signal.SIGCONT)
    after_some_steps(process)
    process.kill()
    returned = 40 + told(process)
    art.shutdown()
    status, steps = kept(stored)
    assert status == "abandoned"
    assert steps >= returned


# Health


def test_a_process_that_captures_well_is_in_good_health(stored: Stored) -> None:
    assert art.health() == art.Health(0, 0.0, 0, 0, {}, None)
    with art.trajectory_scope("x"):
        pass
    stored()
    assert art.health() == art.Health(0, 0.0, 0, 0, {}, None)


def test_what_waits_for_the_store_is_measured(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = home / "art.db"
    store.rename(home / "away.db")
    store.mkdir()  # no store can be opened here
    with art.trajectory_scope("x"):
        pass
    assert not art.flush(0.5)
    time.sleep(0.2)
    health = art.health()
    assert health.journal_bytes > 200
    assert 0.2 < health.oldest_seconds < 60
    assert "art.db" in str(health.store_error)
    store.rmdir()
    (home / "away.db").rename(store)
    assert art.flush(10)
    assert art.health() == art.Health(0, 0.0, 0, 0, {}, None)


def test_what_could_not_be_kept_is_counted_here_and_in_the_store(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with art.trajectory_scope("x"):
        pass
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if data.startswith(journal.MAGIC):
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with art.trajectory_scope("y"):
        art.reward(1)
    monkeypatch.undo()
    os.environ["ART_HOME"] = str(home)
    guard.guarded(_faulty)
    with art.trajectory_scope("z"):
        pass
    assert art.flush(10)
    health = art.health()
    assert (health.dropped, health.errors) == (5, {"_faulty": 1})
    assert sum("No space left" in record.message for record in caplog.records) == 1
    art.shutdown()
    output = invoke("doctor")
    assert "5 records in the last day" in output
    assert "_faulty 1×" in output
    del os.environ["ART_HOME"]


def _faulty() -> None:
    raise LookupError("a hook's own fault")


def test_doctor_tells_of_a_dead_processs_journal_and_how_to_drain_it(
    agent: Callable[..., subprocess.Popen[bytes]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "journal").mkdir()
    old = time.time_ns() - 120 * 10**9
    record = Reward("a" * 32, "b" * 32, None, "reward", 1.0, "code", old)
    (home / "journal" / "1-2-3-0000.journal").write_bytes(journal.frame(record))
    output = invoke("doctor")
    assert "the oldest for 120 s" in output
    assert "art_sdk.init()" in output


def test_records_torn_on_disk_are_counted(stored: Stored, home: Path) -> None:
    (home / "journal").mkdir()
    good = journal.frame(SpanEnd("a" * 32, "b" * 16, None, "x", 1, 2, {}))
    (home / "journal" / "1-2-3-0000.journal").write_bytes(good + b"torn" + good)
    art.init()
    stored()
    assert art.health().unreadable == 1
    assert "1 torn or corrupt" in invoke("doctor")


def test_without_a_journal_the_agent_runs_on_and_what_is_lost_is_counted(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "journal").write_text("in the way")

    @art.trajectory
    def handle() -> int:
        return 3

    assert [handle(), handle()] == [3, 3]
    assert art.health().dropped >= 4  # a start and an end each
    assert art.flush(1) is False
    assert len([r for r in caplog.records if "no journal can be opened" in r.getMessage()]) == 1
    assert "make ART_HOME a folder that can be written to" in caplog.text
    (home / "journal").unlink()
    assert handle() == 3
    assert art.flush(10) is True
    assert art.health().dropped >= 4
