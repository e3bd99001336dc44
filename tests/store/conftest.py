"""The store's tests run on SQLite and on a real Postgres."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import postgres
import pytest

from art_sdk.capture.records import Record
from art_sdk.settings import Settings
from art_sdk.store.database import Database

from .build import apply


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Postgres]:
    with postgres.server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, store_url: str) -> Iterator[str]:
    """An empty store, migrated, on each engine."""
    if request.param == "sqlite":
        yield store_url
    else:
        server: postgres.Postgres = request.getfixturevalue("server")
        with server.database() as url:
            yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without a table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/new/art.db"
    else:
        server: postgres.Postgres = request.getfixturevalue("server")
        with server.database(template="template0") as url:
            yield url


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    opened = Database(store_url)
    yield opened
    opened.close()


@pytest.fixture
def write(database: Database) -> Callable[..., None]:
    """Apply records in one transaction, as if read from a journal."""

    def apply_all(*records: Record, now: int | None = None, journal: str = "a-1", **settings: float) -> None:
        with database.write() as connection:
            given = Settings(**settings)  # type: ignore[arg-type]
            apply(connection, records, journal=journal, settings=given, now=now or time.time_ns())

    return apply_all


@pytest.fixture
def locked(store_url: str, database: Database) -> Callable[[], AbstractContextManager[Any]]:
    """While it is entered, a stranger has the store locked."""

    @contextmanager
    def hold() -> Iterator[None]:
        with database.write() as connection:
            if database.dialect == "postgresql":
                connection.exec_driver_sql("LOCK TABLE trajectories, contents, spans, rewards, journals")
            yield

    return hold
