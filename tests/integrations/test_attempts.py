"""An SDK that sends again makes one call still: its attempts are one span."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import anthropic
import httpx
import openai
import pytest
from stub_api import StubApi

import art_sdk as art
from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

from .said import said, user

Calls = Callable[[], list[Span]]
Captured = Callable[[], Trajectory]


@pytest.fixture
def client(api: StubApi) -> Any:
    with openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=2) as made:
        yield made


@pytest.fixture
async def aclient(api: StubApi) -> Any:
    async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="x", max_retries=2) as made:
        yield made


def is_one_retried_call(calls: Calls, text: str) -> None:
    (span,) = calls()
    assert span.attributes["gen_ai.input.messages"] == [said("user", text)]
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", f"echo: {text}")]
    assert span.attributes["art.http.attempts"] == 2
    assert span.attributes["http.response.status_code"] == 200
    assert span.error is None


@pytest.mark.parametrize("text", ["flaky a", "hang up a"])
@pytest.mark.parametrize("stream", [False, True])
def test_openai_attempts_are_one_span(client: Any, calls: Calls, text: str, stream: bool) -> None:
    @art.trajectory
    def handle() -> str:
        answer = client.chat.completions.create(model="m", messages=user(text), stream=stream)
        if not stream:
            return str(answer.choices[0].message.content)
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer)

    assert handle() == f"echo: {text}"
    is_one_retried_call(calls, text)


@pytest.mark.parametrize("text", ["flaky b", "hang up b"])
@pytest.mark.parametrize("stream", [False, True])
async def test_async_openai_attempts_are_one_span(aclient: Any, calls: Calls, text: str, stream: bool) -> None:
    @art.trajectory
    async def handle() -> str:
        answer = await aclient.chat.completions.create(model="m", messages=user(text), stream=stream)
        if not stream:
            return str(answer.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    assert await handle() == f"echo: {text}"
    is_one_retried_call(calls, text)


@pytest.mark.parametrize("text", ["flaky c", "hang up c"])
def test_anthropic_attempts_are_one_span(api: StubApi, calls: Calls, text: str) -> None:
    @art.trajectory
    def handle() -> str:
        with anthropic.Anthropic(base_url=api.url, api_key="x", max_retries=1) as client:
            return str(client.messages.create(model="c", max_tokens=9, messages=user(text)).content[0].text)

    assert handle() == f"echo: {text}"
    is_one_retried_call(calls, text)


async def test_attempts_of_an_async_anthropic_stream_are_one_span(api: StubApi, calls: Calls) -> None:
    @art.trajectory
    async def handle() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=api.url, api_key="x", max_retries=1) as client,
            client.messages.stream(model="c", max_tokens=9, messages=user("flaky d")) as stream,
        ):
            return "".join([words async for words in stream.text_stream])

    assert await handle() == "echo: flaky d"
    is_one_retried_call(calls, "flaky d")


def test_an_answer_at_once_counts_no_attempts(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(model="m", messages=user("hi"))

    handle()
    assert "art.http.attempts" not in calls()[0].attributes


def test_a_call_whose_attempts_all_fail_is_one_failed_span(client: Any, captured: Captured, api: StubApi) -> None:
    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(model="m", messages=user("fail"), stream=True)

    with pytest.raises(openai.InternalServerError):
        handle()
    run = captured()
    assert len(api.requests) == 3
    _, span = run.spans
    assert span.error is not None
    assert "the stub fails" in span.error
    assert span.attributes["error.type"] == "500"
    assert span.attributes["art.http.attempts"] == 3
    assert run.status == "failed"


def test_a_server_that_is_not_there_is_one_failed_span(api: StubApi, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=1) as client:
            client.chat.completions.create(model="m", messages=user("hi"))

    with pytest.raises(openai.APIConnectionError):
        handle()
    _, span = captured().spans
    assert span.attributes["error.type"] == "ConnectError"
    assert span.attributes["art.http.attempts"] == 2


def test_every_call_after_one_that_failed_is_a_span_of_its_own(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with pytest.raises(openai.InternalServerError):
            client.with_options(max_retries=0).chat.completions.create(model="m", messages=user("fail"))
        client.chat.completions.create(model="m", messages=user("hi"))

    handle()
    failed, answered = calls()
    assert (failed.error is None, answered.error) == (False, None)
    assert "art.http.attempts" not in answered.attributes


async def test_a_call_cancelled_between_two_attempts_is_cancelled(api: StubApi, calls: Calls) -> None:
    answered = asyncio.Event()

    async def busy(request: httpx.Request) -> httpx.Response:
        answered.set()
        return httpx.Response(503, headers={"retry-after": "50"}, json={"error": {"message": "busy"}})

    @art.trajectory
    async def handle() -> None:
        transport = httpx.AsyncClient(transport=httpx.MockTransport(busy))
        client = openai.AsyncOpenAI(base_url="http://x/v1", api_key="x", max_retries=2, http_client=transport)
        await client.chat.completions.create(model="m", messages=user("hi"))

    task = asyncio.create_task(handle())
    await answered.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (span,) = calls()
    assert (span.error, span.attributes["art.status"]) == (None, "cancelled")


async def test_retried_calls_at_once_keep_apart(aclient: Any, client: Any, calls: Calls) -> None:
    names = [f"flaky {n}" for n in range(12)]

    @art.trajectory
    async def handle() -> None:
        await asyncio.gather(
            *(aclient.chat.completions.create(model="m", messages=user(name)) for name in names[:6]),
            *(asyncio.to_thread(client.chat.completions.create, model="m", messages=user(n)) for n in names[6:]),
        )

    await handle()
    spans = calls()
    assert len(spans) == 12
    for span in spans:
        (asked,), (answer,) = span.attributes["gen_ai.input.messages"], span.attributes["gen_ai.output.messages"]
        assert answer["parts"][0]["content"] == f"echo: {asked['parts'][0]['content']}"
        assert span.attributes["art.http.attempts"] == 2


def test_a_call_made_while_another_is_sent_is_a_span_of_its_own(api: StubApi, calls: Calls) -> None:
    """An HTTP client of the user's may itself ask a model before it answers."""

    def judge(request: httpx.Request) -> httpx.Response:
        answer = httpx.post(
            f"{api.openai_url}/chat/completions", json={"model": "judge", "messages": user("is this fine?")}
        )
        return httpx.Response(200, json=answer.json() | {"model": "outer"})

    @art.trajectory
    def handle() -> None:
        transport = httpx.Client(transport=httpx.MockTransport(judge))
        client = openai.OpenAI(base_url="http://x/v1", api_key="x", http_client=transport)
        client.chat.completions.create(model="m", messages=user("hi"))

    handle()
    assert [(span.name, "art.http.attempts" in span.attributes) for span in calls()] == [
        ("chat m", False),
        ("chat judge", False),
    ]


def test_attempts_inside_a_langchain_run_are_noted_on_its_span(api: StubApi, calls: Calls) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    model = langchain_openai.ChatOpenAI(model="m", base_url=api.openai_url, api_key="x", max_retries=2)

    @art.trajectory
    def handle() -> str:
        return str(model.invoke("flaky lc").content)

    assert handle() == "echo: flaky lc"
    is_one_retried_call(calls, "flaky lc")


def test_trajectories_in_threads_with_retries_do_not_mix(client: Any, stored: Callable[[], Store]) -> None:
    @art.trajectory
    def handle(name: str) -> None:
        client.chat.completions.create(model="m", messages=user(f"flaky {name}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(handle, [f"t{n}" for n in range(24)]))
    runs = list(stored().trajectories())
    assert len(runs) == 24
    for run in runs:
        _, span = run.spans
        assert span.attributes["gen_ai.input.messages"] == [said("user", f"flaky {run.input['name']}")]
        assert span.attributes["art.http.attempts"] == 2


def test_a_context_that_outlives_a_request_makes_calls_of_its_own(api: StubApi, calls: Calls) -> None:
    """A connection pool may start threads in the middle of a request: what they do later is no attempt of it."""
    contexts: list[Any] = []

    def remember(request: httpx.Request) -> httpx.Response:
        contexts.append(copy_context())
        return httpx.Response(500, json={"error": {"message": "no"}})

    @art.trajectory
    def handle() -> None:
        transport = httpx.Client(transport=httpx.MockTransport(remember))
        client = openai.OpenAI(base_url="http://x/v1", api_key="x", max_retries=0, http_client=transport)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=user("hi"))
        send = {"json": {"model": "later", "messages": user("hi")}}
        later = threading.Thread(
            target=lambda: contexts[0].run(httpx.post, f"{api.openai_url}/chat/completions", **send)
        )
        later.start()
        later.join()

    handle()
    first, second = calls()
    assert (first.name, second.name) == ("chat m", "chat later")
    assert "art.http.attempts" not in first.attributes | second.attributes
