"""Fixtures for tests that capture: a home of their own, and the store as a reader sees it after a flush.

A `conftest.py` imports `template`, `home` and `stored` from here.
"""

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from art_sdk import lifecycle, settings
from art_sdk.capture import guard, journal, spans
from art_sdk.integrations import instrument
from art_sdk.store import Store, open_store
from art_sdk.store.database import Database

logging.getLogger("alembic").setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, migrated once: copying it is faster than migrating."""
    path = tmp_path_factory.mktemp("template") / "art.db"
    database = Database(f"sqlite:///{path}")
    database.close()
    return path


@pytest.fixture
def home(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh `ART_HOME`; afterwards capture is shut down and nothing of it is left."""
    for name in [name for name in os.environ if name.startswith("ART_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "art"
    folder.mkdir(mode=0o700)
    shutil.copy(template, folder / "art.db")
    monkeypatch.setenv("ART_HOME", str(folder))
    settings.reset()
    guard.errors.clear()
    instrument()
    yield folder
    lifecycle.shutdown(10)
    settings.reset()
    assert journal.current() is None
    assert spans.current_trajectory() is None, "a test left its trajectory current"
    assert not [thread for thread in threading.enumerate() if thread.name == "art-writer"]


@pytest.fixture
def stored(home: Path) -> Iterator[Callable[[], Store]]:
    """Call it for the store with everything captured so far; capture must not have failed anywhere."""
    opened: list[Store] = []

    def read() -> Store:
        assert lifecycle.flush(10)
        assert not guard.errors, guard.errors
        opened.append(open_store())
        return opened[-1]

    yield read
    for store in opened:
        store.close()
