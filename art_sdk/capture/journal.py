"""The journal: an append-only file per process, from which nothing is ever dropped.

Invariant: when `append` returns, the records are in the file system's hands, and a `kill -9` of
this process loses none of them. The file is a sequence of frames

    magic (4 bytes) | length (u32) | CRC-32 of the payload (u32) | payload (msgpack: a record, or an array of some)

one for each append: a record, the content that it refers to and what was held for it. A reader that meets a torn or
corrupt frame skips to the next magic whose checksum holds, so a bad frame costs that frame alone. The owner holds a
lock on its file for as long as it lives; a file that can be locked has lost its owner and belongs to whoever drains it
next.
"""

import fcntl
import logging
import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..errors import ConfigError
from .guard import guarded
from .records import Record, array, decode, encode

log = logging.getLogger("art_sdk.journal")

MAGIC = b"ARTj"
SUFFIX = ".journal"
_HEADER = struct.Struct("<4sII")


def frame(*records: Record) -> bytes:
    return _frame([encode(record) for record in records])


def _frame(encoded: Sequence[bytes]) -> bytes:
    payload = encoded[0] if len(encoded) == 1 else array(encoded)
    return _HEADER.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def _nobody() -> None:
    """Called after each append while no writer listens."""


class Journal:
    """This process's own journal file. Safe to use from every thread.

    `dropped` counts the records that the file system refused (disk full): capture goes on, the
    user's code is not told, the log says so once.
    """

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self.directory = directory
        self.dropped = 0
        self.on_append: Callable[[], None] = _nobody
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._segment = -1
        self._fd = -1
        self._full: dict[Path, int] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.prefix = f"{time.time_ns():x}-{os.getpid()}-{os.urandom(3).hex()}"
        self._open_segment()

    def _open_segment(self) -> None:
        # The final name appears only under the lock, or a drainer could take the file for an orphan's.
        segment = self._segment + 1
        path = self.directory / f"{self.prefix}-{segment:04d}{SUFFIX}"
        temporary = path.with_suffix(".new")
        fd = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.rename(temporary, path)
        except OSError:
            os.close(fd)
            raise
        self._segment, self._fd, self.path, self.size = segment, fd, path, 0

    def append(self, *records: Record) -> bool:
        """Write what is held and the records in one `os.write`. Never raises for what the disk does; False once it is
        closed."""
        encoded = [encode(record) for record in records]
        with self._lock:
            if self._fd == -1:
                return False
            encoded = [*_let_go(), *encoded]  # under the lock: what others let go of is written when this returns
            if not encoded:
                return True
            data = _frame(encoded)
            try:
                if self.size and self.size + len(data) > self._segment_bytes:
                    self._rotate()
                written = os.write(self._fd, data)
                self.size += written
                if written < len(data):
                    raise OSError(f"only {written} of {len(data)} bytes were written")
            except OSError as error:
                if not self.dropped:
                    log.error("journal %s: %s; records are being dropped, see art doctor", self.path, error)
                self.dropped += len(encoded)
        self.on_append()
        return True

    def _rotate(self) -> None:
        # A full segment stays locked until it is drained, or another process would take it for an orphan's.
        path, fd = self.path, self._fd
        self._open_segment()
        self._full[path] = fd

    def is_full(self, path: Path) -> bool:
        """Whether this is a segment of ours that nothing will be written to any more."""
        with self._lock:
            return path in self._full

    def drained(self, path: Path) -> None:
        """Let go of a full segment: all of it is in the store."""
        with self._lock:
            if path in self._full:
                os.close(self._full.pop(path))

    def close(self) -> None:
        """Let go of the files; what is not yet in the store stays on disk for the next process."""
        with self._lock:
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        for fd in (*self._full.values(), self._fd):
            os.close(fd)
        self._full.clear()
        self._fd = -1


def read_frames(data: bytes | memoryview) -> Iterator[tuple[int, Record | None]]:
    """Yield `(end offset of its frame, record)` for each record in `data`; None where bytes were unreadable.

    Stops before a last frame that is not complete: its owner may still be writing it.
    """
    view = memoryview(data)
    position = 0
    while position + _HEADER.size <= len(view):
        magic, length, checksum = _HEADER.unpack_from(view, position)
        end = position + _HEADER.size + length
        if magic == MAGIC and end <= len(view):
            payload = view[position + _HEADER.size : end]
            if zlib.crc32(payload) == checksum:
                for record in decode(payload):
                    yield end, record
                position = end
                continue
        following = _next_frame(view, position + 1)
        if following is None:
            return
        yield following, None
        position = following


def _next_frame(view: memoryview, start: int) -> int | None:
    """Offset of the next frame with a right checksum, or None."""
    raw = bytes(view)
    position = raw.find(MAGIC, start)
    while position != -1:
        if position + _HEADER.size <= len(raw):
            _, length, checksum = _HEADER.unpack_from(raw, position)
            payload = raw[position + _HEADER.size : position + _HEADER.size + length]
            if len(payload) == length and zlib.crc32(payload) == checksum:
                return position
        position = raw.find(MAGIC, position + 1)
    return None


# This process's journal, opened with its first record and again in a forked child.

_current: Journal | None = None
_refused = False
_guard = threading.Lock()
_on_open: list[Callable[[Journal], None]] = []


def on_open(callback: Callable[[Journal], None]) -> None:
    """Call `callback` with each journal that this process (or a forked child) opens."""
    _on_open.append(callback)


def current() -> Journal | None:
    """This process's journal, or None while it has written nothing."""
    return _current


unopened = 0
"""Records that were lost because no journal could be opened."""
_held: deque[bytes] = deque()
"""Encoded records."""


def hold(record: Record) -> None:
    """Write this along with the next record of this process, in one write; at the latest, when the writer looks next.
    For content that only that record refers to, and for spans that are no calls."""
    _held.append(encode(record))
    if _current is not None:
        _current.on_append()


def append(*records: Record) -> None:
    """Write to this process's journal, opening it first if need be. Where it can't be opened, the log says so once."""
    global unopened
    while (journal := _current or start()) is not None and not journal.append(*records):
        pass  # closed by another thread between the two calls
    if journal is None:
        lost = len(records) + sum(1 for _ in _let_go())
        unopened += lost if _refused else 0


def write_held() -> None:
    """Write what is held."""
    if _held:
        append()


def _let_go() -> Iterator[bytes]:
    while _held:
        yield _held.popleft()


def start() -> Journal | None:
    """Open this process's journal, unless it is open. Where it can't be opened, the log says so once."""
    global _current, _refused
    from ..settings import get_settings

    with _guard:
        if _current is None:
            try:
                settings = get_settings()
                if settings.off:
                    return None
                _current = Journal(settings.home.resolve() / "journal", settings.journal_segment_bytes)
            except (OSError, ConfigError) as error:
                if not _refused:
                    log.error(
                        "no journal can be opened: %s; the agent runs on and nothing is captured: make ART_HOME a "
                        "folder that can be written to, or name another",
                        error,
                    )
                _refused = True
                return None
            _refused = False
            for callback in _on_open:
                guarded(callback, _current)
        return _current


def close() -> None:
    """Close this process's journal; the next record opens a new one."""
    global _current
    with _guard:
        if _current is not None:
            journal, _current = _current, None
            journal.close()


def _after_fork_in_child() -> None:
    global _current, _guard, unopened
    _guard = threading.Lock()
    unopened = 0
    _held.clear()  # the parent writes it
    if _current is not None:
        # Only our copies of the descriptors: the parent's locks stay with the parent.
        _current._close_descriptors()
        _current = None


os.register_at_fork(after_in_child=_after_fork_in_child)
