"""Processes that die with their parent, however it dies.

`spawn` starts a small guard, and the guard starts the command in a session of its own. The guard's
stdin is a pipe whose other end only the parent holds, so a parent that ends, even by SIGKILL, is seen
as end of file. Then, on SIGTERM, and when the command itself ends, the guard ends the command's whole
process group and exits with the command's code. The command may thus have processes of its own (an
engine has several): none of them outlives the guard. Should the guard itself be killed, the parent ends
the group in its place.

This file is also the guard's program. It is run by its path, in isolated mode, with nothing but the
standard library, so it starts in milliseconds wherever the package is installed.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL when the parent is gone and nobody is left to decide."""


class Child:
    """A running command and its guard. Made by `spawn`."""

    def __init__(self, guard: subprocess.Popen[bytes], lifeline: int, told: int) -> None:
        self._guard = guard
        self._lifeline: int | None = lifeline
        self._told: int | None = told

    @property
    def pid(self) -> int:
        """The guard's process id; SIGTERM to it ends the command too."""
        return self._guard.pid

    @property
    def returncode(self) -> int | None:
        """The command's exit code, 128 + n when signal n ended it; None while it runs."""
        code = self._guard.poll()
        if code is None:
            return None
        if self._told is not None:
            group = os.read(self._told, 32)
            os.close(self._told)
            self._told = None
            if code < 0 and group:  # the guard was killed, and its command lives on
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int(group), signal.SIGKILL)
        return code if code >= 0 else 128 - code

    def alive(self) -> bool:
        return self.returncode is None

    def stop(self, timeout: float = 20.0) -> None:
        """End the command and all its processes: SIGTERM, and SIGKILL after `timeout` seconds.

        Stopping twice, or what has ended already, does nothing.
        """
        if self.alive():
            self._guard.terminate()
            try:
                self._guard.wait(timeout)
            except subprocess.TimeoutExpired:
                self._guard.terminate()
                self._guard.wait()
        _ = self.returncode
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def spawn(argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> Child:
    """Start `argv` so that it ends no later than this process does.

    `env` is its whole environment; stdout and stderr are appended to `log`, whose folder is made.
    A command that can't be started says so in the log and ends with code 127.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # Both ends are close-on-exec (PEP 446), so no other child of this process keeps the pipe open.
    watched, lifeline = os.pipe()
    told, tell = os.pipe()
    try:
        with log.open("ab") as output:
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(tell), *argv],
                stdin=watched,
                pass_fds=[tell],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                # Ctrl-C in a terminal is for the parent, which then stops its children in order.
                start_new_session=True,
            )
    except BaseException:
        os.close(lifeline)
        os.close(told)
        raise
    finally:
        os.close(watched)
        os.close(tell)
    return Child(guard, lifeline, told)


def _guard(tell: int, argv: list[str]) -> int:
    """Run `argv` until it ends, the parent is gone or SIGTERM comes; returns the exit code. Writes the id of the
    command's process group to the descriptor `tell`."""
    parent = os.getppid()
    wake, wake_writer = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, _woken)
    try:
        command = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]}: {error}\n")
        return 127
    os.write(tell, str(command.pid).encode())
    os.close(tell)

    asked = False
    kill_at: float | None = None
    orphaned = False
    while not _ended(command.pid):
        watched = [wake] if orphaned else [wake, sys.stdin.fileno()]
        readable, _, _ = select.select(watched, [], [], 1.0 if kill_at is None else 0.1)
        stop = False
        if wake in readable:
            stop = any(number != signal.SIGCHLD for number in os.read(wake, 512))
        # A fork of the parent may still hold the pipe when the parent is dead: hence its id as well.
        if not orphaned and (sys.stdin.fileno() in readable or os.getppid() != parent):
            orphaned = stop = True
            kill_at = time.monotonic() + GRACE
        if stop and not asked:
            asked = True
            os.killpg(command.pid, signal.SIGTERM)
        elif (stop and not orphaned) or (kill_at is not None and time.monotonic() > kill_at):
            break
    # The command is not reaped yet, so its id can't be another group's by now.
    os.killpg(command.pid, signal.SIGKILL)
    code = command.wait()
    return code if code >= 0 else 128 - code


def _ended(pid: int) -> bool:
    """Whether the process has ended, left unreaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _woken(number: int, frame: FrameType | None) -> None:
    """Only so that the signal interrupts `select`, through the wake-up pipe."""


if __name__ == "__main__":
    sys.exit(_guard(int(sys.argv[1]), sys.argv[2:]))
