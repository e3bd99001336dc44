from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stub_api
from stub_api import StubApi

from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory


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


# LangChain, for the files that use it


@pytest.fixture
def no_open_runs() -> Iterator[None]:
    yield
    from art_sdk.integrations.langchain import _handler

    assert _handler._runs == {}


@pytest.fixture
async def options(api: StubApi) -> AsyncIterator[dict[str, Any]]:
    from .clients import sdk_http

    # By default langchain-openai shares one async client, and its connections, between event loops.
    async with sdk_http.AsyncClient() as client:
        yield {"base_url": api.openai_url, "api_key": "sk-secret", "max_retries": 0, "http_async_client": client}


@pytest.fixture
def model(options: dict[str, Any]) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="m", **options)
