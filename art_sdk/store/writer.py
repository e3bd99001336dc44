"""The writer: a thread that drains journals into the store, its own process's and those of the dead.

The position is written last, in one transaction with what follows from the rows, so a writer killed at any
moment continues where the store says; records that it applies again change nothing. While the store is away
the records wait in the journal; the log says so once.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from sqlalchemy import Connection, delete, select, update

from ..capture import guard, journal
from ..capture.health import Health, backlog
from ..capture.journal import SUFFIX, Journal, read_frames
from ..capture.records import Record
from ..errors import StoreError
from ..settings import Settings
from . import tables as t
from .apply import Prepared, Touched, derive, insert, prepare, upsert
from .database import Database, RecordsRefused
from .queue import refresh_groups

log = logging.getLogger("art_sdk.store")

P = ParamSpec("P")
T = TypeVar("T")

_READ_BYTES = 8 << 20
_GATHER_SECONDS = 0.25
_ORPHANS_SECONDS = 5.0


class Writer:
    """Drains `journal` and, beside it, what other processes left in its folder."""

    def __init__(self, journal: Journal, settings: Settings) -> None:
        self._journal = journal
        self._settings = settings
        self._url = settings.resolved_store_url()  # now: the program may change its folder later
        self._database: Database | None = None
        self._positions: dict[str, int] = {}
        self._left: set[Path] = set()
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._drained = threading.Condition()
        self._requested = 0
        self._served = 0
        self._stopping = False
        self._failing: str | None = None
        self._unreadable = 0
        self._told: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name="art-writer", daemon=True)
        journal.on_append = self._appended

    def start(self) -> None:
        self._thread.start()

    def _appended(self) -> None:
        if not self._wake.is_set():  # it mostly is, and setting it takes a lock
            self._wake.set()

    def flush(self, timeout: float) -> bool:
        """Wait until all that is in the journal now is in the store. False when `timeout` seconds were not enough."""
        if not self._thread.is_alive():
            return False
        with self._drained:
            self._requested += 1
            ours = self._requested
            self._hurry.set()
            self._wake.set()
            return self._drained.wait_for(lambda: self._served >= ours, timeout)

    def stop(self, timeout: float) -> bool:
        """Drain once more and end the thread. False where something stays in the journal for the next process."""
        drained = self.flush(timeout)
        self._stopping = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(timeout)
        return drained

    def leave(self) -> None:
        """After `stop`, with the journal closed: delete a journal that is all in the store."""
        if self._thread.is_alive() or self._database is None:
            return
        path = self._journal.path
        try:
            if path.stat().st_size == self._positions.get(path.name):
                self._abandon(path)
                self._delete(path)
        except (StoreError, OSError) as error:
            log.warning("journal %s stays for the next process: %s", path, error)
        self._database.close()

    def _run(self) -> None:
        orphans_at = 0.0
        while not self._stopping:
            self._wake.clear()
            self._hurry.clear()
            serving = self._requested
            try:
                journal.write_held()
                self._drain_own()
                self._tell_faults()
                if time.monotonic() >= orphans_at:
                    self._drain_orphans()
                    orphans_at = time.monotonic() + _ORPHANS_SECONDS
            except (StoreError, OSError) as error:
                if self._failing is None:
                    log.error("%s; records wait in %s until it is back", error, self._journal.directory)
                self._failing = str(error)
                time.sleep(0.2)
                continue
            if self._failing is not None:
                log.warning("the trajectory store is back")
            self._failing = None
            with self._drained:
                self._served = serving
                self._drained.notify_all()
            if self._wake.wait(1.0):  # records come in bursts: one transaction for each burst
                self._hurry.wait(_GATHER_SECONDS)

    def _drain_own(self) -> None:
        prefix = self._journal.prefix
        for path in sorted(self._journal.directory.glob(f"{prefix}-*{SUFFIX}")):
            full = self._journal.is_full(path)  # asked first: what fills up meanwhile is drained next time
            self._drain(path)
            if full:
                self._delete(path)

    def _drain_orphans(self) -> None:
        for path in sorted(self._journal.directory.glob(f"*{SUFFIX}")):
            if path.name.startswith(self._journal.prefix):
                continue
            try:
                self._drain_orphan(path)
            except FileNotFoundError:
                continue  # another process was quicker
            except OSError as error:
                if path not in self._left:
                    log.warning("journal %s is left alone: %s", path, error.strerror)
                self._left.add(path)

    def _drain_orphan(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # its owner lives
        else:
            self._drain(path)
            self._abandon(path)
            self._delete(path)
        finally:
            os.close(descriptor)

    def _drain(self, path: Path) -> None:
        database = self._open()
        position = self._positions.get(path.name)
        if position is None:
            with database.read() as connection:
                query = select(t.journals.c.position).where(t.journals.c.file == path.name)
                position = connection.execute(query).scalar() or 0
        end = path.stat().st_size  # what comes meanwhile is the next batch's, or a busy agent would make each one small
        for batch in self._batches(path, position, end):
            if batch.corrupt:
                log.error("journal %s: %d unreadable records were skipped", path, batch.corrupt)
                self._unreadable += batch.corrupt
            row = {"file": path.name, "position": batch.position, "corrupt": batch.corrupt}
            self._write(path, batch.records, row, batch.prepared)
            self._positions[path.name] = batch.position

    def _batches(self, path: Path, position: int, end: int) -> "Iterator[_Batch]":
        """What is in a journal from `position` to its end. The next is prepared while the one before is written: the
        drivers leave Python's lock free meanwhile."""
        batch = self._read(path, position)
        while batch is not None:
            coming = _in_thread(self._read, path, batch.position) if batch.position < end else None
            yield batch
            batch = coming.result() if coming is not None else None

    def _read(self, path: Path, position: int) -> "_Batch | None":
        """The next part of a journal; None where no whole record follows."""
        found = _read_records(path, position)
        if found is None:
            return None
        records, corrupt, position = found
        try:
            prepared = self._prepare(path, records)
        except Exception:  # of one record: who writes them finds which
            prepared = None
        return _Batch(records, prepared, corrupt, position)

    def _prepare(self, path: Path, records: list[Record]) -> Prepared:
        return prepare(records, dialect=self._open().dialect, journal=_owner(path), settings=self._settings)

    def _write(
        self, path: Path, records: list[Record], row: dict[str, Any] | None, prepared: Prepared | None = None
    ) -> None:
        """Apply the records; one that the store can't take is skipped and stops no other."""
        try:
            self._transaction(prepared or self._prepare(path, records), row)
        except Exception as error:
            if not records or not _is_records_fault(error):
                raise
            if len(records) > 1:
                middle = len(records) // 2
                self._write(path, records[:middle], None)
                self._write(path, records[middle:], row)
            else:
                log.exception("journal %s: the store refused a %s; it is skipped", path, type(records[0]).__name__)
                self._unreadable += 1
                self._write(path, [], row)

    def _transaction(self, prepared: Prepared, row: dict[str, Any] | None) -> None:
        database = self._open()
        with database.write() as connection:
            touched = insert(connection, prepared)
            if database.one_writer:
                self._derive(connection, touched, row)
        if not database.one_writer:
            with database.write() as connection:
                self._derive(connection, touched, row)

    def _derive(self, connection: Connection, touched: Touched, row: dict[str, Any] | None) -> None:
        derive(connection, touched, self._settings, time.time_ns())
        if row is not None:
            upsert(connection, t.journals, [row], ("position",))

    def health(self) -> Health:
        """Of this process and its folder."""
        positions = dict(self._positions)
        waiting, oldest = backlog(self._journal.directory, positions)
        return Health(waiting, oldest, **self._faults(), store_error=self._failing)

    def _faults(self) -> dict[str, Any]:
        dropped = self._journal.dropped + journal.unopened
        return {"dropped": dropped, "unreadable": self._unreadable, "errors": dict(guard.errors)}

    def _tell_faults(self) -> None:
        """Keep the counts in the store too, so that `art doctor` finds them from another process."""
        faults = self._faults()
        if faults != self._told and any(faults.values()):
            row = {"process": self._journal.prefix, "at": time.time_ns(), **faults}
            with self._open().write() as connection:
                upsert(connection, t.faults, [row], ("dropped", "unreadable", "errors", "at"))
            self._told = faults

    def _abandon(self, path: Path) -> None:
        """What a dead process had begun and not ended was abandoned."""
        c = t.trajectories.c
        running = (c.journal == _owner(path)) & (c.status == "running")
        with self._open().write() as connection:
            groups = connection.execute(select(c.group_id).where(running, c.group_id.is_not(None))).scalars().all()
            connection.execute(update(t.trajectories).where(running).values(status="abandoned"))
            refresh_groups(connection, set(groups), time.time_ns())

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._journal.drained(path)
        self._positions.pop(path.name, None)
        with self._open().write() as connection:
            connection.execute(delete(t.journals).where(t.journals.c.file == path.name))

    def _open(self) -> Database:
        if self._database is None:
            self._database = Database(self._url)
        return self._database


class _Batch(NamedTuple):
    records: list[Record]
    prepared: Prepared | None
    """None where one of the records can't be made a row."""
    corrupt: int
    position: int
    """Where in the journal it ends."""


def _read_records(path: Path, position: int) -> tuple[list[Record], int, int] | None:
    """The records of the next part of a journal, how many were unreadable, and where it ends."""
    with path.open("rb") as file:
        file.seek(position)
        data = file.read(_READ_BYTES)
        frames = list(read_frames(data))
        if not frames and len(data) == _READ_BYTES:  # one record larger than a read
            data += file.read()
            frames = list(read_frames(data))
    if not frames:
        return None
    records = [record for _, record in frames if record is not None]
    return records, len(frames) - len(records), position + frames[-1][0]


def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="art-reader", daemon=True).start()
    except RuntimeError:  # the interpreter is ending and starts no more threads
        run()
    return future


def _is_records_fault(error: Exception) -> bool:
    """Whether trying again is in vain, whatever the store's state."""
    return isinstance(error, RecordsRefused) or not isinstance(error, StoreError | OSError)


def _owner(path: Path) -> str:
    """The process that a journal file belongs to: its name without the segment's number."""
    return path.name.rpartition("-")[0]
