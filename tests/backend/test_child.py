"""The guard: exit codes pass, and no process outlives the parent or a stop."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from art_sdk.backend.child import spawn

ENV = dict(os.environ)

FAMILY = """
import os, pathlib, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {grandchild.pid}")
time.sleep(60)
"""

PARENT = """
import os, pathlib, sys, time
from art_sdk.backend.child import spawn
child = spawn([sys.executable, "-c", sys.argv[1], sys.argv[2]], env=dict(os.environ), log=pathlib.Path(sys.argv[3]))
time.sleep(60)
"""

STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text("0 0")
time.sleep(60)
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(true: Callable[[], bool], seconds: float = 8.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return False


def family(pids: Path) -> list[int]:
    assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    return [int(pid) for pid in pids.read_text().split()]


def test_exit_code_and_output_pass_through(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    child = spawn(
        [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"],
        env=ENV,
        log=log,
    )
    assert eventually(lambda: not child.alive())
    assert child.returncode == 7
    assert set(log.read_text().split()) == {"out", "err"}
    child.stop()


def test_death_by_a_signal_is_128_and_the_signal(tmp_path: Path) -> None:
    child = spawn([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], env=ENV, log=tmp_path / "child.log")
    assert eventually(lambda: not child.alive())
    assert child.returncode == 128 + signal.SIGKILL
    child.stop()


def test_a_command_that_is_not_there_is_named_in_the_log(tmp_path: Path) -> None:
    child = spawn(["/no/such/engine"], env=ENV, log=tmp_path / "child.log")
    assert eventually(lambda: not child.alive())
    assert child.returncode == 127
    assert "cannot start /no/such/engine" in (tmp_path / "child.log").read_text()
    child.stop()


def test_stop_ends_grandchildren_and_can_be_repeated(tmp_path: Path) -> None:
    child = spawn([sys.executable, "-c", FAMILY, str(tmp_path / "pids")], env=ENV, log=tmp_path / "child.log")
    pids = family(tmp_path / "pids")
    child.stop()
    child.stop()
    assert not child.alive()
    assert eventually(lambda: not any(map(running, pids)))


def test_stop_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    child = spawn([sys.executable, "-c", STUBBORN, str(tmp_path / "pids")], env=ENV, log=tmp_path / "child.log")
    family(tmp_path / "pids")
    child.stop(timeout=0.3)
    assert child.returncode == 128 + signal.SIGKILL


def test_grandchildren_end_when_the_command_ends_by_itself(tmp_path: Path) -> None:
    leaves_one = FAMILY.replace("time.sleep(60)\n", "")
    child = spawn([sys.executable, "-c", leaves_one, str(tmp_path / "pids")], env=ENV, log=tmp_path / "child.log")
    _, grandchild = family(tmp_path / "pids")
    assert eventually(lambda: not child.alive())
    assert eventually(lambda: not running(grandchild))
    child.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_everything_ends_when_the_parent_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    arguments = [FAMILY, str(tmp_path / "pids"), str(tmp_path / "child.log")]
    with subprocess.Popen([sys.executable, "-c", PARENT, *arguments]) as parent:
        pids = family(tmp_path / "pids")
        parent.send_signal(number)
        parent.wait()
        assert eventually(lambda: not any(map(running, pids)))


def test_nothing_lives_on_when_the_guard_itself_is_killed(tmp_path: Path) -> None:
    child = spawn([sys.executable, "-c", FAMILY, str(tmp_path / "pids")], env=ENV, log=tmp_path / "child.log")
    pids = family(tmp_path / "pids")
    os.kill(child.pid, signal.SIGKILL)
    assert eventually(lambda: not child.alive())
    assert child.returncode == 128 + signal.SIGKILL
    assert eventually(lambda: not any(map(running, pids)))
    child.stop()
