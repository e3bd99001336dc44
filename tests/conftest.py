"""What every test may use: a home of its own, the store that it captured into, and the real inference engine."""

import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from art_sdk import lifecycle, settings
from art_sdk.backend.engine import Engine, EngineOptions
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
def store_url(tmp_path: Path, template: Path) -> str:
    """An empty store, migrated, where `home` has it by default."""
    folder = tmp_path / "art"
    folder.mkdir(mode=0o700)
    shutil.copy(template, folder / "art.db")
    return f"sqlite:///{folder}/art.db"


@pytest.fixture
def home(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh `ART_HOME`; afterwards capture is shut down and nothing of it is left."""
    for name in [name for name in os.environ if name.startswith("ART_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "art"
    folder.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("ART_HOME", str(folder))
    if not store_url.startswith("sqlite"):
        monkeypatch.setenv("ART_STORE_URL", store_url)
    settings.reset()
    guard.errors.clear()
    journal.unopened = 0
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


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """vLLM with the tiny model, once per session; adapters of rank 8 can be loaded into it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from tiny_model import tiny_model

    options = EngineOptions(
        base_model=str(tiny_model()),
        served_names=("support@0", "SmolLM2-135M-Instruct"),
        lora_rank=8,
        max_model_len=2048,
        tool_call_parser="hermes",
    )
    running = Engine(options, log=tmp_path_factory.mktemp("engine") / "engine.log")
    running.start()
    yield running
    running.stop()
