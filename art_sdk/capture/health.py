"""How far the store is behind the journals, and what capture could not keep."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .journal import SUFFIX, read_frames
from .records import Record, SpanEnd, SpanStart


@dataclass(frozen=True)
class Health:
    """What `art.health()` returns, of this process and its journal folder.

    `dropped` must be 0. `errors` counts the faults of capture's own hooks, by hook: each cost a record, none reached
    the agent.
    """

    journal_bytes: int
    """Written to the journals of this folder and not yet in the store."""
    oldest_seconds: float
    """Age of the oldest of that; 0 where nothing waits."""
    dropped: int
    """Records that the disk refused."""
    unreadable: int
    """Records that were torn or corrupt when they were to be drained."""
    errors: dict[str, int]
    store_error: str | None
    """Why the store takes nothing at the moment."""


def backlog(directory: Path, positions: Mapping[str, int]) -> tuple[int, float]:
    """Bytes that wait in the journals of a folder, and the age in seconds of the oldest record among them.

    `positions` says how far each file, by name, has been drained.
    """
    waiting, oldest = 0, None
    for path in directory.glob(f"*{SUFFIX}"):
        position = positions.get(path.name, 0)
        try:
            size = path.stat().st_size
            if size > position:
                waiting += size - position
                written = _first_time(path, position)
                oldest = written if oldest is None else min(oldest, written)
        except FileNotFoundError:  # drained meanwhile
            continue
    return waiting, 0.0 if oldest is None else max(0.0, time.time() - oldest)


def _first_time(path: Path, position: int) -> float:
    """When the first record behind `position` was written, in seconds since the epoch."""
    with path.open("rb") as file:
        file.seek(position)
        head = file.read(1 << 20)
    for _, record in read_frames(head):
        if record is not None and (time_ns := _time_of(record)) is not None:
            return time_ns / 1e9
    return path.stat().st_mtime


def _time_of(record: Record) -> int | None:
    if isinstance(record, SpanEnd):
        return record.ended_at
    if isinstance(record, SpanStart):
        return record.started_at
    created: int | None = msgspec.structs.asdict(record).get("created_at")
    return created
