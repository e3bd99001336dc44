from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import stub_api
from fresh import home, stored, template
from stub_api import StubApi

from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

__all__ = ["home", "stored", "template"]


@pytest.fixture(scope="session")
def server() -> Iterator[StubApi]:
    with stub_api.serve() as running:
        yield running


@pytest.fixture
def api(server: StubApi, home: Path) -> StubApi:
    server.requests.clear()
    server.seen.clear()
    return server


@pytest.fixture
def captured(stored: Callable[[], Store]) -> Callable[[], Trajectory]:
    """The one trajectory of the test."""

    def read() -> Trajectory:
        (run,) = stored().trajectories()
        return run

    return read


@pytest.fixture
def calls(captured: Callable[[], Trajectory]) -> Callable[[], list[Span]]:
    """The LLM calls of the one trajectory of the test."""
    return lambda: [span for span in captured().spans if span.operation in ("chat", "text_completion")]
