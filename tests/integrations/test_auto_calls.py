"""Zero code: with `ART_AUTO=1` an LLM call outside any trajectory is a trajectory of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation
from stub_api import StubApi

import art_sdk as art
from art_sdk import settings
from art_sdk.capture import journal
from art_sdk.store import Store
from art_sdk.store.reading import Trajectory

from .said import said, user

Captured = Callable[[], Trajectory]


@pytest.fixture(autouse=True)
def auto(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_AUTO", "1")
    settings.reset()


@pytest.fixture
def client(api: StubApi) -> Any:
    with openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=1) as made:
        yield made


def test_a_call_is_a_trajectory(client: Any, captured: Captured) -> None:
    assert client.chat.completions.create(model="m", messages=user("hi")).choices[0].message.content == "echo: hi"
    run = captured()
    assert (run.name, run.status) == ("chat m", "finished")
    assert run.output == said("assistant", "echo: hi")
    assert run.input == {"messages": [said("user", "hi")]}
    root, call = run.spans
    assert call.parent_id == root.span_id
    assert call.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi")]


def test_a_stream_is_a_trajectory_that_ends_when_it_is_read(client: Any, captured: Captured) -> None:
    assert len(list(client.chat.completions.create(model="m", messages=user("a b"), stream=True))) == 5
    run = captured()
    assert (run.status, run.output) == ("finished", said("assistant", "echo: a b"))


def test_a_stream_closed_early_is_a_cancelled_trajectory(client: Any, captured: Captured) -> None:
    with client.chat.completions.create(model="m", messages=user("long"), stream=True) as stream:
        next(stream)
    run = captured()
    assert run.status == "cancelled"
    assert run.spans[1].attributes["art.stream.end"] == "closed"


def test_attempts_are_one_trajectory(client: Any, captured: Captured) -> None:
    client.chat.completions.create(model="m", messages=user("flaky auto"))
    run = captured()
    assert (run.status, len(run.spans)) == ("finished", 2)
    assert run.spans[1].attributes["art.http.attempts"] == 2


def test_a_failed_call_is_a_failed_trajectory(client: Any, captured: Captured) -> None:
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=user("fail"))
    run = captured()
    assert run.status == "failed"
    assert run.spans[1].error is not None


async def test_a_cancelled_call_is_a_cancelled_trajectory(captured: Captured) -> None:
    asked = asyncio.Event()

    async def never(request: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.sleep(60)
        raise AssertionError

    async def call() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(never)) as client:
            await client.post("http://x/v1/chat/completions", json={"model": "m", "messages": []})

    task = asyncio.create_task(call())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert captured().status == "cancelled"


def test_calls_inside_a_trajectory_belong_to_it(client: Any, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(model="m", messages=user("hi"))

    handle()
    assert captured().name == "test_calls_inside_a_trajectory_belong_to_it.handle"


def test_each_call_is_one_of_its_own(client: Any, stored: Callable[[], Store]) -> None:
    for text in ("a", "b"):
        client.chat.completions.create(model="m", messages=user(text))
    assert sorted(run.output["parts"][0]["content"] for run in stored().trajectories()) == ["echo: a", "echo: b"]


def test_suppressed_calls_and_other_requests_are_none(client: Any, api: StubApi) -> None:
    with suppress_instrumentation():
        client.chat.completions.create(model="m", messages=user("hi"))
    httpx.post(f"{api.url}/orders", json={"model": "m"})
    art.uninstrument()
    try:
        client.chat.completions.create(model="m", messages=user("hi"))
    finally:
        art.instrument()
    assert journal.current() is None
