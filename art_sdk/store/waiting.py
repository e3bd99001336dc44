"""Waiting for the store to change without asking it for its rows all the time.

On Postgres whoever makes a claim ready says so (`NOTIFY`, heard when the transaction commits). On SQLite a pragma that
reads no table tells that another connection has committed something.
"""

import contextlib
import time
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from ..errors import StoreError
from . import tables as t
from .database import Database

CHANNEL = "art_ready"
_LOOK_SECONDS = 0.05


class Changes:
    """Hears of changes from its making on. One thread waits; close it at the end."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None
        self._seen: int | None = None

    def wait(self, seconds: float) -> None:
        """Return when a group may have become ready, or after `seconds`. While the store is away, after a moment."""
        try:
            seconds = max(_LOOK_SECONDS, min(seconds, _next_check(self._database)))
            if self._connection is None:
                self._connect()
            elif self._database.dialect == "postgresql":
                for _ in self._connection.driver_connection.notifies(timeout=seconds, stop_after=1):
                    pass
            else:
                self._look(seconds)
        except (StoreError, SQLAlchemyError, self._database.engine.dialect.loaded_dbapi.Error):
            self.close()
            time.sleep(_LOOK_SECONDS)

    def _connect(self) -> None:
        """And return at once: what happened before was not heard."""
        self._connection = self._database.engine.raw_connection()
        if self._database.dialect == "postgresql":
            self._connection.driver_connection.autocommit = True
            self._connection.driver_connection.execute(f"LISTEN {CHANNEL}")
        else:
            self._seen = self._version()

    def _look(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (version := self._version()) == self._seen and (left := end - time.monotonic()) > 0:
            time.sleep(min(_LOOK_SECONDS, left))
        self._seen = version

    def _version(self) -> int:
        found: tuple[int] = self._connection.driver_connection.execute("PRAGMA data_version").fetchone()
        return found[0]

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):  # it may be broken already
                self._connection.invalidate()  # it listens: no other may have it
            self._connection = None


def _next_check(database: Database) -> float:
    """Seconds until time alone may make a group ready."""
    g = t.groups.c
    with database.read() as connection:
        at = connection.execute(select(func.min(g.check_at)).where(g.status == "open")).scalar()
    return float("inf") if at is None else max(0.0, at / 1e9 - time.time())


def tell(connection: Connection) -> None:
    """A claim has become ready, in this transaction."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"NOTIFY {CHANNEL}")
