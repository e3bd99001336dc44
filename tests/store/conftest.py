import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fresh import home, stored, template

from art_sdk.capture.records import Record
from art_sdk.settings import Settings
from art_sdk.store.apply import apply
from art_sdk.store.database import Database

__all__ = ["home", "stored", "template"]


@pytest.fixture
def database(tmp_path: Path, template: Path) -> Iterator[Database]:
    shutil.copy(template, tmp_path / "art.db")
    opened = Database(f"sqlite:///{tmp_path / 'art.db'}")
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
