"""A connection to the store: SQLite or Postgres, migrated to this code's schema before first use.

Reads and writes are separate on purpose. A SQLite write transaction begins with `BEGIN IMMEDIATE`:
one that first reads and then wants to write fails under load however long it may wait.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
    StatementError,
)

from ..errors import StoreError
from ..extras import install_command

SCHEMA = "0003"
_BUSY_MS = 30_000
_WRITE = "art_write"


class RecordsRefused(StoreError):
    """The store is well, but can't hold what it was given."""


class Database:
    """The engine of one store URL. Open with `Database(url)`, which migrates; safe to share between threads."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        self.url = url
        self.engine = _create(url, create)
        self._migrate()

    @property
    def name(self) -> str:
        """The URL as it was given, without its passwords."""
        url = make_url(self.url)
        hidden = {key: "hidden" for key in url.query if "password" in key.lower()}
        return url.update_query_dict(hidden).render_as_string(hide_password=True)

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    @property
    def one_writer(self) -> bool:
        """Whether a write transaction has the whole store to itself."""
        return self.dialect == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        with self._errors(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with (
            self._errors(),
            self.engine.connect().execution_options(**{_WRITE: True}) as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Read, over several statements, what was there at one moment."""
        with self._errors(), self.engine.connect() as connection:
            if self.dialect == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def unbound(self) -> Iterator[Connection]:
        """A connection outside any transaction, for what may not run in one."""
        with self._errors(), self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            refused = isinstance(error, DataError | IntegrityError) or type(error) is StatementError
            raise (RecordsRefused if refused else StoreError)(
                f"the trajectory store {self.name} failed: {_cause(error)}"
            ) from error

    def _migrate(self) -> None:
        if self.revision() == SCHEMA:
            return
        from .migrate import upgrade

        with self.write() as connection:
            if self.dialect == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(7310837)"))
            upgrade(connection, self.name)

    def revision(self) -> str | None:
        """Of the schema that the store has; None for an empty one."""
        with self.read() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


_POSTGRES_DEFAULTS = {
    "application_name": "art-agent-sdk",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "tcp_user_timeout": "30000",
}


def _create(url: str, create: bool) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise StoreError(f"the trajectory store must be sqlite:/// or postgresql://, got {parsed.drivername}://")
        if parsed.get_backend_name() == "postgresql":
            # libpq's own defaults wait for minutes on a server that has vanished.
            parsed = parsed.set(query={**_POSTGRES_DEFAULTS, **parsed.query})
            engine = create_engine(parsed, pool_pre_ping=True)
        else:
            engine = create_engine(parsed, connect_args={"cached_statements": _CACHED_STATEMENTS})
    except ImportError as error:
        raise StoreError(
            f"the trajectory store needs a driver that is not installed ({error.name}): {install_command('postgres')}"
        ) from error
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise StoreError("the trajectory store's URL is not one: expected sqlite:///path or postgresql://…") from error
    if engine.dialect.name == "sqlite":
        _create_file(engine.url.database, create)
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
    return engine


_CACHED_STATEMENTS = 32
"""Of each SQLite connection. One that the writer makes for thousands of rows is as large as they are."""


def _create_file(path: str | None, create: bool) -> None:
    """The file holds what users wrote to the agent: only its owner may read it."""
    if not path or path == ":memory:":
        return
    file = Path(path)
    if not create and not file.exists():
        raise StoreError(f"there is no trajectory store at {file}: run an agent first, or name another with --store")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"cannot create the trajectory store {file}: {error.strerror}") from error


def _on_sqlite_connect(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's begin event says BEGIN, not the driver
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    _to_wal(cursor)
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
    cursor.close()


def _to_wal(cursor: sqlite3.Cursor) -> None:
    """SQLite does not wait by itself where several open a new file at once: it says that the file is locked."""
    end = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _on_sqlite_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(_WRITE) else "BEGIN")


_CURES = {
    "not a database": "move the file away, or name another with ART_STORE_URL or --store",
    "is malformed": "the file is damaged: restore it from a backup, or move it away to begin a new one",
    "readonly": "make the file and its folder writable, or name another with ART_STORE_URL or --store",
    "disk is full": "make room on its disk; what is captured waits in the journal",
    "unable to open": "check that its folder is there and can be written to",
}


def _cause(error: SQLAlchemyError) -> str:
    said = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    return next((f"{said}: {cure}" for words, cure in _CURES.items() if words in said), said)
