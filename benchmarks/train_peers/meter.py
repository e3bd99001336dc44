"""Time and memory of training steps, taken alike on both sides. Standard library only."""

import os
import statistics
import threading
import time
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLED_EVERY = 0.005


class Meter:
    """`start` and `stop` around each step. Memory is counted from what the process held before the first step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self._before = 0
        self._most = 0
        self._running = threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def start(self) -> None:
        if not self.seconds:
            self._before = _resident()
        self._running.set()
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.seconds.append(time.perf_counter() - self._started)
        self.cpu.append(time.process_time() - self._cpu_started)
        self._running.clear()

    def result(self) -> dict[str, float]:
        """Medians without the first step, which warms up, unless it is the only one."""
        steps = slice(1, None) if len(self.seconds) > 1 else slice(None)
        return {
            "seconds": statistics.median(self.seconds[steps]),
            "cpu": statistics.median(self.cpu[steps]),
            "memory_mb": (self._most - self._before) / 2**20,
        }

    def _sample(self) -> None:
        while True:
            self._running.wait()
            self._most = max(self._most, _resident())
            time.sleep(_SAMPLED_EVERY)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
