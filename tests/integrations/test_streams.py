"""The life of a streamed answer: as long as the client reads it, and no longer than its trajectory, unless that is
what the function returned."""

import asyncio
import gc
import json
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import hypothesis
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_api import StubApi

import art_sdk as art
from art_sdk.capture import spans
from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

from .clients import sdk_http
from .said import user

Calls = Callable[[], list[Span]]
Captured = Callable[[], Trajectory]


@pytest.fixture
def client(api: StubApi) -> Any:
    with openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as made:
        yield made


def open_stream(client: Any, text: str) -> Any:
    return client.chat.completions.create(model="m", messages=user(text), stream=True)


def words(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_a_trajectory_that_returns_a_stream_ends_when_that_is_read(client: Any, captured: Captured) -> None:
    live: list[Any] = []

    @art.trajectory
    def handle() -> Any:
        live.append(art.current_trajectory())
        return open_stream(client, "a b")

    stream = handle()
    assert live[0].open
    assert words(stream) == "echo: a b"
    assert not live[0].open
    run = captured()
    assert run.status == "finished"
    assert run.spans[1].attributes["art.stream.end"] == "done"
    assert run.spans[1].seconds is not None


async def test_a_trajectory_that_returns_an_async_stream_ends_when_that_is_read(
    api: StubApi, captured: Captured
) -> None:
    @art.trajectory
    async def handle(client: Any) -> Any:
        return await client.chat.completions.create(model="m", messages=user("a b"), stream=True)

    async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="x") as client:
        assert len([chunk async for chunk in await handle(client)]) == 5
    run = captured()
    assert run.status == "finished"
    assert run.spans[1].attributes["art.stream.end"] == "done"


def test_a_returned_stream_that_nobody_reads_ends_once_it_is_let_go_of(
    client: Any, stored: Callable[[], Store]
) -> None:
    live: list[Any] = []

    @art.trajectory
    def handle() -> Any:
        live.append(art.current_trajectory())
        return open_stream(client, "long")

    stream = handle()
    del stream
    gc.collect()
    until(lambda: not live[0].open)
    (run,) = stored().trajectories()
    assert run.status == "finished"
    assert run.spans[1].ended_at is not None
    assert run.spans[1].attributes["art.stream.end"] == "closed"


def test_a_returned_stream_that_is_read_in_part_and_let_go_of_keeps_that_part(
    client: Any, stored: Callable[[], Store]
) -> None:
    live: list[Any] = []

    @art.trajectory
    def handle() -> Any:
        live.append(art.current_trajectory())
        return open_stream(client, "long")

    stream = handle()
    for _ in range(4):
        next(stream)
    del stream
    gc.collect()
    until(lambda: not live[0].open)
    (run,) = stored().trajectories()
    (message,) = run.spans[1].attributes["gen_ai.output.messages"]
    assert message["parts"][0]["content"].startswith("w0 w1 w2 ")


def test_a_stream_left_open_is_cancelled_with_its_trajectory(client: Any, captured: Captured) -> None:
    kept: list[Any] = []

    @art.trajectory
    def handle() -> str:
        kept.append(open_stream(client, "a b c"))
        next(kept[0]), next(kept[0])
        return "enough"

    assert handle() == "enough"
    assert words(kept[0]) == "a b c"  # the rest, for whoever still wants it
    run = captured()
    _, span = run.spans
    assert run.status == "finished"
    assert span.attributes["art.stream.end"] == "closed"
    assert span.attributes["art.status"] == "cancelled"
    assert span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"].startswith("echo: ")
    assert span.ended_at is not None
    assert span.ended_at <= run.spans[0].ended_at


async def test_a_call_that_outlives_its_trajectory_is_cancelled(api: StubApi, captured: Captured) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()
    tasks: list[Any] = []

    async def slow(request: httpx.Request) -> httpx.Response:
        asked.set()
        await go_on.wait()
        return httpx.Response(200, json={"id": "1", "choices": []})

    async def call() -> int:
        async with httpx.AsyncClient(transport=httpx.MockTransport(slow)) as client:
            return (await client.post("http://x/v1/chat/completions", json={"model": "m"})).status_code

    @art.trajectory
    async def handle() -> None:
        tasks.append(asyncio.create_task(call()))
        await asked.wait()

    await handle()
    go_on.set()
    assert await tasks[0] == 200
    _, span = captured().spans
    assert (span.error, span.attributes["art.status"]) == (None, "cancelled")
    assert span.ended_at is not None


def test_a_stream_cut_by_the_server_is_a_failed_span_with_what_came(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with pytest.raises((openai.APIConnectionError, sdk_http.RemoteProtocolError)):
            list(open_stream(client, "cut"))

    handle()
    (span,) = calls()
    assert span.attributes["error.type"] == "RemoteProtocolError"
    assert span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"] == "one two "


@pytest.mark.parametrize("api_name", ["chat", "responses", "messages"])
def test_an_error_that_the_server_sends_in_a_stream_fails_the_span(
    api: StubApi, client: Any, calls: Calls, api_name: str
) -> None:
    import anthropic

    @art.trajectory
    def handle() -> None:
        if api_name == "chat":
            list(open_stream(client, "break"))
        elif api_name == "responses":
            events = list(client.responses.create(model="m", input="break", stream=True))
            raise openai.APIError(
                events[-1].message, sdk_http.Request("POST", api.url), body=None
            )  # the SDK hands it on
        else:
            with anthropic.Anthropic(base_url=api.url, api_key="x") as claude:
                list(claude.messages.create(model="c", max_tokens=9, messages=user("break"), stream=True))

    with pytest.raises((openai.APIError, anthropic.APIError)):
        handle()
    (span,) = calls()
    assert span.error is not None
    assert "the stub breaks" in span.error
    assert span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"].strip() == "one two three"


def test_several_streams_read_in_turns_keep_apart(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        streams = [open_stream(client, f"a{n} b c") for n in range(3)]
        for chunks in zip(*streams, strict=True):
            assert len(chunks) == 3

    handle()
    assert [span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"] for span in calls()] == [
        f"echo: a{n} b c" for n in range(3)
    ]


def test_nothing_of_a_trajectory_is_kept_after_it(client: Any) -> None:
    seen: list[Any] = []

    @art.trajectory
    def handle() -> str:
        live = art.current_trajectory()
        seen.append(weakref.ref(live))
        client.chat.completions.create(model="m", messages=user("hi"))
        words(open_stream(client, "a"))
        kept = open_stream(client, "b")
        next(kept)
        assert isinstance(live, spans.LiveTrajectory)
        assert (len(live.at_end), len(live.streams)) == (1, 1)  # the open stream
        return "done"

    handle()
    gc.collect()
    assert seen[0]() is None


def test_a_kept_answer_or_error_keeps_nothing_of_its_trajectory(client: Any) -> None:
    seen: list[Any] = []

    @art.trajectory
    def handle(text: str) -> Any:
        live = art.current_trajectory()
        seen.append(weakref.ref(live))
        stream = open_stream(client, text)
        kept.append(stream)
        for _ in stream:
            pass

    kept: list[Any] = []
    handle("a b")
    with pytest.raises((openai.APIConnectionError, sdk_http.RemoteProtocolError)):
        handle("cut")
    with pytest.raises(openai.InternalServerError):
        handle("fail")
    gc.collect()
    assert [reference() for reference in seen] == [None] * 3


def test_the_client_sees_each_chunk_as_it_comes(client: Any) -> None:
    @art.trajectory
    def handle() -> float:
        begun = time.monotonic()
        with open_stream(client, "long") as stream:
            next(stream)
            return time.monotonic() - begun

    whole = 2000 * 0.005
    assert handle() < whole / 2


def test_a_stream_left_unread_by_a_plain_client_is_no_fault(api: StubApi, calls: Calls) -> None:
    body = {"model": "m", "messages": user("hi")}

    @art.trajectory
    def handle() -> None:
        with httpx.Client() as client:
            with client.stream("POST", f"{api.openai_url}/chat/completions", json=body):
                pass
            with client.stream("POST", f"{api.openai_url}/chat/completions", json=body | {"stream": True}):
                pass

    handle()
    assert [(span.attributes["art.stream.end"], span.error) for span in calls()] == [("closed", None)] * 2


STEPS = st.lists(st.sampled_from(["next", "next", "next", "close", "rest", "leave"]), max_size=8)


@given(STEPS, st.integers(0, 9), st.sampled_from(["openai", "lines", "bytes"]))
@hypothesis.settings(
    max_examples=80, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_a_stream_is_to_its_reader_what_it_is_without_capture(
    home: Any, steps: list[str], whole_events: int, reader: str
) -> None:
    def drive() -> list[Any]:
        seen: list[Any] = []
        with reading(reader, whole_events) as (chunks, close):
            for step in steps:
                try:
                    if step == "leave":
                        break
                    if step == "rest":
                        seen.extend(chunks)
                    else:
                        seen.append(close() if step == "close" else next(chunks))
                except Exception as error:
                    seen.append((type(error), str(error)))
        return seen

    assert art.trajectory(drive)() == drive()


@contextmanager
def reading(reader: str, whole_events: int) -> Iterator[Any]:
    """A stream of six events that breaks off after some of them, from a server that sends them always the same way."""

    class Events(sdk_http.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for number in range(6):
                if number == whole_events:
                    raise sdk_http.ReadError("broken off")
                choice = {"index": 0, "delta": {"content": f"w{number} "}, "finish_reason": None}
                event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
                yield f"data: {json.dumps(event)}\n\n".encode()
            yield b"data: [DONE]\n\n"

    def answer(request: Any) -> Any:
        return sdk_http.Response(200, headers={"content-type": "text/event-stream"}, stream=Events())

    with sdk_http.Client(transport=sdk_http.MockTransport(answer)) as plain:
        if reader == "openai":
            client = openai.OpenAI(base_url="http://x/v1", api_key="x", max_retries=0, http_client=plain)
            with open_stream(client, "hi") as stream:
                yield stream, stream.close
        else:
            body = {"model": "m", "messages": user("hi"), "stream": True}
            with plain.stream("POST", "http://x/v1/chat/completions", json=body) as response:
                yield response.iter_lines() if reader == "lines" else response.iter_raw(), response.close


def until(reached: Callable[[], bool]) -> None:
    for _ in range(500):
        if reached():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")
