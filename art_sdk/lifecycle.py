"""Wires capture to a store: the process that captures also drains its journal, from its first record on."""

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .capture import journal

if TYPE_CHECKING:
    from .capture.health import Health
    from .store.writer import Writer

_EXIT_SECONDS = 5.0

_writer: "Writer | None" = None


def init(
    *,
    store: str | None = None,
    policy: str | None = None,
    home: Path | str | None = None,
    mask: Callable[[Any], Any] | None = None,
) -> None:
    """Choose the store, the policy or the folder in code instead of by `ART_*` variables.

    Optional: with none of it the first trajectory starts everything. Call it before that one. It also drains what
    earlier processes left in their journals.

    Args:
        store: as `ART_STORE_URL`.
        policy: as `ART_POLICY`.
        home: as `ART_HOME`.
        mask: every message, argument and result passes through it before it is kept: JSON-like data (dict, list,
            str …) in, what may be kept out. Where it raises, nothing of that content is kept. A call with masked
            content is never trained on.

    Raises:
        StoreError: the store cannot be opened; without `init` that is only logged, and capture goes on.
    """
    from .capture.redaction import set_mask
    from .settings import get_settings, reset
    from .store.database import Database

    chosen = {"ART_STORE_URL": store, "ART_POLICY": policy, "ART_HOME": home}
    os.environ.update({name: str(value) for name, value in chosen.items() if value is not None})
    reset()
    if mask is not None:
        set_mask(mask)
    Database(get_settings().resolved_store_url()).close()
    journal.start()


def flush(timeout: float = 30.0) -> bool:
    """Wait until everything captured so far is in the store. False when `timeout` seconds were not enough, and where
    there is not even a journal to keep it in."""
    return not journal.unopened if _writer is None else _writer.flush(timeout)


def health() -> "Health":
    """How far the store is behind, and what could not be kept: watch `dropped`, which must be 0."""
    from .capture import guard
    from .capture.health import Health

    if _writer is not None:
        return _writer.health()
    return Health(0, 0.0, journal.unopened, 0, dict(guard.errors), None)


def shutdown(timeout: float = 30.0) -> bool:
    """Flush and stop. False where something stays in the journal, for the next process to drain."""
    global _writer
    writer, _writer = _writer, None
    if writer is None:
        return True
    drained = writer.stop(timeout)
    journal.close()
    writer.leave()
    return drained


def _start_writer(opened: journal.Journal) -> None:
    global _writer
    from .settings import get_settings
    from .store.writer import Writer

    _writer = Writer(opened, get_settings())
    _writer.start()


def _after_fork_in_child() -> None:
    global _writer
    _writer = None  # its thread stayed in the parent; the child's first record starts another


journal.on_open(_start_writer)
atexit.register(shutdown, _EXIT_SECONDS)
os.register_at_fork(after_in_child=_after_fork_in_child)
