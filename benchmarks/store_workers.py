"""A process of `benchmarks/store.py`: `write URL HOME` drains a journal, `claim URL OWNER` claims until SIGTERM.

Prints, as JSON, the longest wait for one transaction, in seconds, and the number of errors.
"""

import json
import logging
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from art_sdk.capture.journal import Journal
from art_sdk.settings import Settings
from art_sdk.store import steps
from art_sdk.store.apply import Prepared
from art_sdk.store.batch import Outcome
from art_sdk.store.database import Database
from art_sdk.store.queue import LeaseLost, claim
from art_sdk.store.reasons import Reason
from art_sdk.store.writer import Writer


class Counter(logging.Handler):
    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.levelno >= logging.ERROR


def main() -> None:
    errors = Counter()
    logging.getLogger("art_sdk").addHandler(errors)
    worst = write(sys.argv[2], Path(sys.argv[3])) if sys.argv[1] == "write" else claim_until_told(*sys.argv[2:4])
    print(json.dumps({"worst": worst, "errors": errors.count}))


def write(url: str, home: Path) -> float:
    """Drain what is in the home's journal folder. A writer waits for nobody, so its wait is its longest batch."""
    own = Journal(home / "journal", 1 << 30)
    writer = Writer(own, Settings(home=home, store_url=url))
    waits = [0.0]
    transaction = writer._transaction

    def timed(prepared: Prepared, row: dict[str, Any] | None) -> None:
        started = time.perf_counter()
        transaction(prepared, row)
        waits.append(time.perf_counter() - started)

    writer._transaction = timed  # type: ignore[method-assign]
    writer.start()
    while len(list((home / "journal").iterdir())) > 1:
        time.sleep(0.005)
    writer.stop(60)
    return max(waits)


def claim_until_told(url: str, owner: str) -> float:
    told: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        told.append(number)

    signal.signal(signal.SIGTERM, note)
    database = Database(url)
    worst = 0.0
    while not told:
        started = time.perf_counter()
        groups = claim(database, "support", owner=owner, limit=32, lease_seconds=60)
        if groups:
            outcomes = [Outcome(m.trajectory_id, 0, reason=Reason.NO_TOKENS) for g in groups for m in g.members]
            given = {"metrics": {}, "started_at": 1, "version": None, "path": None, "note": "bench"}
            try:
                steps.record_step(database, "support", owner=owner, groups=groups, outcomes=outcomes, **given)  # type: ignore[arg-type]
            except LeaseLost:
                logging.getLogger("art_sdk").error("a lease was lost")
        worst = max(worst, time.perf_counter() - started)
        time.sleep(0.02)
    database.close()
    return worst


if __name__ == "__main__":
    main()
