"""LLM calls of openai, anthropic and plain httpx/httpx2: one span each, and the client notices nothing."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from stub_api import StubApi

import art_sdk as art
from art_sdk import settings
from art_sdk.capture import journal
from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

from .clients import sdk_http
from .said import said, tool_call, user

Calls = Callable[[], list[Span]]
Captured = Callable[[], Trajectory]

WEATHER_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture
def client(api: StubApi) -> Any:
    with openai.OpenAI(base_url=api.openai_url, api_key="sk-very-secret", max_retries=0) as made:
        yield made


@pytest.fixture
async def aclient(api: StubApi) -> Any:
    async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="sk-very-secret", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(api: StubApi) -> Any:
    with anthropic.Anthropic(base_url=api.url, api_key="sk-very-secret", max_retries=0) as made:
        yield made


# OpenAI, chat completions


def test_a_chat_call_is_one_span_with_all_that_the_conventions_ask_for(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> Any:
        return client.chat.completions.create(
            model="m", messages=[{"role": "system", "content": "Be brief."}, *user("hi")], temperature=0.5, max_tokens=9
        )

    answer = handle()
    assert answer.choices[0].message.content == "echo: hi"
    (span,) = calls()
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.response.id": answer.id,
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.input.messages": [said("system", "Be brief."), said("user", "hi")],
        "gen_ai.output.messages": [said("assistant", "echo: hi")],
        "server.address": "127.0.0.1",
        "http.response.status_code": 200,
    }
    assert span.attributes == expected
    assert (span.name, span.error) == ("chat m", None)
    assert span.seconds is not None


async def test_an_async_chat_call_is_one_span(aclient: Any, calls: Calls) -> None:
    @art.trajectory
    async def handle() -> Any:
        return await aclient.chat.completions.create(model="m", messages=user("hi"))

    assert (await handle()).choices[0].message.content == "echo: hi"
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi")]


def test_a_stream_is_one_span_with_the_whole_answer(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> str:
        stream = client.chat.completions.create(
            model="m", messages=user("hi there"), stream=True, stream_options={"include_usage": True}
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    assert handle() == "echo: hi there"
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi there")]
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert span.attributes["gen_ai.request.stream"] is True
    assert span.attributes["gen_ai.usage.output_tokens"] == 5
    assert span.attributes["gen_ai.response.id"].startswith("chatcmpl-")
    assert span.attributes["art.stream.end"] == "done"


async def test_an_async_stream_is_one_span_with_the_whole_answer(aclient: Any, calls: Calls) -> None:
    @art.trajectory
    async def handle() -> str:
        stream = await aclient.chat.completions.create(model="m", messages=user("hi there"), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert await handle() == "echo: hi there"
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi there")]
    assert span.attributes["art.stream.end"] == "done"


def test_all_parallel_tool_calls_of_a_stream_are_kept(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        list(
            client.chat.completions.create(
                model="m", messages=user("weather in Rome and Oslo and Lima"), tools=[WEATHER_TOOL], stream=True
            )
        )

    handle()
    (span,) = calls()
    (message,) = span.attributes["gen_ai.output.messages"]
    assert message == {"role": "assistant", "parts": [tool_call("Rome"), tool_call("Oslo"), tool_call("Lima")]}
    assert span.attributes["gen_ai.tool.definitions"] == [WEATHER_TOOL]
    assert span.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]


def test_a_stream_that_is_closed_early_keeps_what_came(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with client.chat.completions.create(model="m", messages=user("long"), stream=True) as stream:
            for number, _ in enumerate(stream):
                if number == 5:
                    break

    handle()
    (span,) = calls()
    (message,) = span.attributes["gen_ai.output.messages"]
    assert message["parts"][0]["content"].startswith("w0 w1 w2 ")
    assert "w1999" not in message["parts"][0]["content"]
    assert (span.attributes["art.stream.end"], span.error) == ("closed", None)


async def test_an_async_stream_that_is_closed_early_keeps_what_came(aclient: Any, calls: Calls) -> None:
    @art.trajectory
    async def handle() -> None:
        async with await aclient.chat.completions.create(model="m", messages=user("long"), stream=True) as stream:
            async for _ in stream:
                await asyncio.sleep(0.05)
                break

    await handle()
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"][0]["role"] == "assistant"
    assert span.attributes["art.stream.end"] == "closed"


def test_a_stream_that_breaks_off_keeps_what_came_and_raises_as_ever(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with pytest.raises((openai.APIConnectionError, sdk_http.RemoteProtocolError)):
            list(client.chat.completions.create(model="m", messages=user("cut"), stream=True))

    handle()
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "one two ")]
    assert span.attributes["art.stream.end"] == "RemoteProtocolError"


def test_a_stream_read_after_the_function_returned_is_recorded_whole(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> Any:
        return client.chat.completions.create(model="m", messages=user("a b c"), stream=True)

    assert len(list(handle())) == 6
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: a b c")]


def test_several_choices_are_several_output_messages(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(model="m", messages=user("hi"), n=3)

    handle()
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi")] * 3
    assert span.attributes["gen_ai.request.choice.count"] == 3


def test_raw_responses_and_streaming_responses_are_captured_too(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        raw = client.chat.completions.with_raw_response.create(model="m", messages=user("raw"))
        assert raw.parse().choices[0].message.content == "echo: raw"
        with client.chat.completions.with_streaming_response.create(model="m", messages=user("later")) as response:
            assert response.parse().choices[0].message.content == "echo: later"

    handle()
    assert [span.attributes["gen_ai.output.messages"] for span in calls()] == [
        [said("assistant", "echo: raw")],
        [said("assistant", "echo: later")],
    ]


def test_a_compressed_answer_is_read(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> Any:
        return client.chat.completions.create(model="m-gzip", messages=user("hi")).choices[0].message.content

    assert handle() == "echo: hi"
    assert calls()[0].attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi")]


def test_an_http_error_is_a_failed_span_and_the_clients_own_exception(client: Any, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(model="m", messages=user("fail"))

    with pytest.raises(openai.InternalServerError) as caught:
        handle()
    assert caught.value.status_code == 500
    run = captured()
    assert run.status == "failed"
    _, span = run.spans
    assert span.error is not None
    assert "500" in span.error
    assert "the stub fails" in span.error
    assert span.attributes["http.response.status_code"] == 500
    assert span.ended_at is not None


def test_a_server_that_is_not_there_is_a_failed_span(api: StubApi, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0) as client:
            client.chat.completions.create(model="m", messages=user("hi"))

    with pytest.raises(openai.APIConnectionError):
        handle()
    _, span = captured().spans
    assert span.attributes["error.type"] == "ConnectError"


async def test_a_cancelled_call_ends_its_span(api: StubApi, aclient: Any, calls: Calls) -> None:
    begun = asyncio.Event()

    @art.trajectory
    async def handle() -> None:
        stream = await aclient.chat.completions.create(model="m", messages=user("long"), stream=True)
        async for _ in stream:
            begun.set()

    task = asyncio.create_task(handle())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (span,) = calls()
    assert span.error is None
    assert span.attributes["art.stream.end"] in ("CancelledError", "closed")
    assert span.attributes["gen_ai.output.messages"][0]["role"] == "assistant"


async def test_a_call_cancelled_before_its_answer_is_no_error(api: StubApi, calls: Calls) -> None:
    asked = asyncio.Event()

    async def never(request: httpx.Request) -> httpx.Response:
        asked.set()
        await asyncio.sleep(60)
        raise AssertionError

    @art.trajectory
    async def handle() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(never)) as client:
            await client.post("http://x/v1/chat/completions", json={"model": "m", "messages": []})

    task = asyncio.create_task(handle())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (span,) = calls()
    assert (span.error, span.attributes["art.status"]) == (None, "cancelled")
    assert span.ended_at is not None


def test_a_call_that_the_sdk_retries_is_one_span(api: StubApi, calls: Calls) -> None:
    @art.trajectory
    def handle() -> Any:
        with openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=1) as client:
            return client.chat.completions.create(model="m", messages=user("flaky a")).choices[0].message.content

    assert handle() == "echo: flaky a"
    assert len(calls()) == 1


# OpenAI, the other APIs


def test_text_completions_are_captured(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> tuple[str, str]:
        whole = client.completions.create(model="m", prompt="once")
        stream = client.completions.create(model="m", prompt="upon a time", stream=True)
        return whole.choices[0].text, "".join(chunk.choices[0].text for chunk in stream)

    assert handle() == ("echo: once", "echo: upon a time")
    first, second = calls()
    assert first.name == "text_completion m"
    assert first.attributes["gen_ai.input.messages"] == [said("user", "once")]
    assert first.attributes["gen_ai.output.messages"] == [said("assistant", "echo: once")]
    assert second.attributes["gen_ai.output.messages"] == [said("assistant", "echo: upon a time")]


def test_responses_are_captured(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> tuple[str, int]:
        whole = client.responses.create(model="m", input="hi", instructions="Be brief.")
        stream = client.responses.create(
            model="m", input=user("weather in Rome and Oslo"), tools=[{"type": "function"}], stream=True
        )
        return whole.output_text, len(list(stream))

    assert handle()[0] == "echo: hi"
    first, second = calls()
    assert first.attributes["gen_ai.input.messages"] == [said("system", "Be brief."), said("user", "hi")]
    assert first.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi")]
    assert first.attributes["gen_ai.usage.cache_read.input_tokens"] == 2
    assert first.attributes["gen_ai.usage.reasoning.output_tokens"] == 1
    assert [message["parts"][0] for message in second.attributes["gen_ai.output.messages"]] == [
        tool_call("Rome"),
        tool_call("Oslo"),
    ]
    assert second.attributes["art.stream.end"] == "done"


def test_a_responses_stream_that_is_closed_early_keeps_what_came(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with client.responses.create(model="m", input="long", stream=True) as stream:
            for number, _ in enumerate(stream):
                if number == 8:
                    break

    handle()
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"].startswith("w0 w1 ")
    assert span.attributes["art.stream.end"] == "closed"


# Anthropic


def test_anthropic_messages_are_captured(claude: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> str:
        answer = claude.messages.create(model="c", max_tokens=9, system="Be brief.", messages=user("hi"))
        return answer.content[0].text

    assert handle() == "echo: hi"
    (span,) = calls()
    assert span.attributes["gen_ai.input.messages"] == [said("system", "Be brief."), said("user", "hi")]
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: hi")]
    assert span.attributes["gen_ai.response.finish_reasons"] == ["end_turn"]
    assert span.attributes["gen_ai.usage.input_tokens"] == 7


def test_an_anthropic_stream_with_tool_calls_is_captured(claude: Any, calls: Calls) -> None:
    tools = [{"name": "get_weather", "input_schema": {"type": "object"}}]

    @art.trajectory
    def handle() -> Any:
        with claude.messages.stream(
            model="c", max_tokens=9, messages=user("weather in Rome and Oslo"), tools=tools
        ) as stream:
            return stream.get_final_message()

    assert [block.input for block in handle().content] == [{"city": "Rome"}, {"city": "Oslo"}]
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [
        {"role": "assistant", "parts": [tool_call("Rome"), tool_call("Oslo")]}
    ]
    assert span.attributes["art.stream.end"] == "done"
    assert span.attributes["gen_ai.tool.definitions"] == tools


def test_anthropic_tool_results_are_captured(claude: Any, captured: Captured) -> None:
    result = {"type": "tool_result", "tool_use_id": "call_rome", "content": "sunny"}
    use = {"type": "tool_use", "id": "call_rome", "name": "get_weather", "input": {"city": "Rome"}}

    @art.trajectory
    def handle() -> str:
        messages = [
            *user("weather in Rome"),
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        return claude.messages.create(model="c", max_tokens=9, messages=messages).content[0].text

    assert handle() == "It is sunny"
    assert captured().messages() == [
        said("user", "weather in Rome"),
        {"role": "assistant", "parts": [tool_call("Rome")]},
        {"role": "user", "parts": [{"type": "tool_call_response", "id": "call_rome", "response": "sunny"}]},
        said("assistant", "It is sunny"),
    ]


# Plain HTTP clients


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_plain_clients_are_captured(api: StubApi, calls: Calls, library: Any) -> None:
    url = f"{api.openai_url}/chat/completions"

    @art.trajectory
    def handle() -> tuple[str, bytes]:
        with library.Client() as client:
            whole = client.post(url, json={"model": "m", "messages": user("hi")}).json()
            with client.stream("POST", url, json={"model": "m", "messages": user("ho"), "stream": True}) as response:
                raw = b"".join(response.iter_bytes())
        return whole["choices"][0]["message"]["content"], raw

    content, raw = handle()
    assert content == "echo: hi"
    assert raw.endswith(b"data: [DONE]\n\n")
    assert [span.attributes["gen_ai.output.messages"][0] for span in calls()] == [
        said("assistant", "echo: hi"),
        said("assistant", "echo: ho"),
    ]


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_plain_async_clients_are_captured(api: StubApi, calls: Calls, library: Any) -> None:
    @art.trajectory
    async def handle() -> Any:
        async with library.AsyncClient() as client:
            body = {"model": "m", "messages": user("hi")}
            return (await client.post(f"{api.openai_url}/chat/completions", json=body)).json()

    assert (await handle())["choices"][0]["message"]["content"] == "echo: hi"
    assert len(calls()) == 1


def test_other_requests_are_none_of_ours(api: StubApi, captured: Captured) -> None:
    def upload() -> Any:
        yield b'{"model": "m"}'

    @art.trajectory
    def handle() -> None:
        with httpx.Client(base_url=api.url) as client:
            assert client.post("/v1/messages", json={"text": "to a chat room"}).status_code == 200
            assert client.post("/orders", json={"model": "m"}).json()["path"] == "/orders"
            assert client.get("/v1/chat/completions").status_code == 501
            upload_answer = client.post("/orders/messages", content=upload(), headers={"content-length": "14"})
            assert upload_answer.json()["echo"] == {"model": "m"}

    handle()
    assert len(captured().spans) == 1


def test_calls_outside_a_trajectory_leave_no_trace(api: StubApi, client: Any) -> None:
    assert client.chat.completions.create(model="m", messages=user("hi")).choices[0].message.content == "echo: hi"
    assert len(list(client.chat.completions.create(model="m", messages=user("hi"), stream=True))) == 4
    assert journal.current() is None
    assert all("x-art-trajectory" not in request.headers for request in api.requests)


def test_an_answer_that_is_no_json_ends_its_span_and_reaches_the_caller(captured: Captured, api: StubApi) -> None:
    from art_sdk.capture import guard

    transport = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>busy</html>"))

    @art.trajectory
    def handle() -> str:
        with httpx.Client(transport=transport) as client:
            return client.post("http://x/v1/chat/completions", json={"model": "m", "messages": []}).text

    assert handle() == "<html>busy</html>"
    assert guard.errors.total() == 1
    guard.errors.clear()
    _, span = captured().spans
    assert span.ended_at is not None


# Where the trajectory's id goes, and what never gets stored


def test_the_trajectory_goes_to_the_gateway_and_to_nobody_else(
    api: StubApi, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_GATEWAY_URL", api.openai_url)
    settings.reset()
    elsewhere = api.url.replace("127.0.0.1", "localhost")

    @art.trajectory
    def handle() -> None:
        for base in (api.openai_url, f"{elsewhere}/v1", f"{api.url}/v10/v1"):
            with openai.OpenAI(base_url=base, api_key="x") as client:
                client.chat.completions.create(model="m", messages=user("hi"))

    handle()
    run = captured()
    first, *others = api.requests
    assert first.headers["x-art-trajectory"] == f"{run.id}-{run.spans[1].span_id}"
    assert len(others) == 2
    assert all("x-art-trajectory" not in request.headers for request in others)


@pytest.mark.parametrize("spelling", ["{}/", "{}", "HTTP://127.0.0.1:{port}/v1"])
def test_the_gateways_url_may_be_spelled_in_any_way(
    api: StubApi, captured: Captured, monkeypatch: pytest.MonkeyPatch, client: Any, spelling: str
) -> None:
    monkeypatch.setenv("ART_GATEWAY_URL", spelling.format(api.openai_url, port=api.url.rpartition(":")[2]))
    settings.reset()

    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(model="m", messages=user("hi"))
        httpx.post(f"{api.openai_url}/rewards", json={})

    handle()
    run = captured()
    call, other = api.requests
    assert call.headers["x-art-trajectory"] == f"{run.id}-{run.spans[1].span_id}"
    assert other.headers["x-art-trajectory"] == f"{run.id}-{run.spans[0].span_id}"


def test_the_users_traceparent_is_never_written(api: StubApi, client: Any, captured: Captured) -> None:
    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(model="m", messages=user("hi"))

    handle()
    assert "traceparent" not in api.requests[0].headers


def test_keys_headers_and_queries_are_nowhere_in_the_files(
    api: StubApi, home: Path, stored: Callable[[], Store]
) -> None:
    @art.trajectory
    def handle(text: str) -> Any:
        headers = {"authorization": "Bearer sk-very-secret", "x-api-key": "sk-very-secret"}
        with httpx.Client(headers=headers) as client:
            response = client.post(
                f"{api.openai_url}/chat/completions?key=sk-very-secret", json={"model": "m", "messages": user(text)}
            )
            return response.raise_for_status().json()["id"]

    @art.trajectory
    def with_clients(sync: Any, plain: Any) -> None:
        sync.chat.completions.create(model="m", messages=user("hi"), extra_headers={"x-more": "sk-very-secret"})

    assert handle("hello")
    with pytest.raises(httpx.HTTPStatusError, match="sk-very-secret"):
        handle("fail")
    with (
        openai.OpenAI(base_url=api.openai_url, api_key="sk-very-secret") as sync,
        httpx.Client(headers={"authorization": "sk-very-secret"}) as plain,
    ):
        with_clients(sync, plain)
    stored()
    files = [file for file in home.rglob("*") if file.is_file()]
    assert any(b"chatcmpl-" in file.read_bytes() for file in files)
    assert [file for file in files if b"very-secret" in file.read_bytes()] == []


# Off, threads, several turns


def test_uninstrument_stops_spans_and_the_calls_still_work(client: Any, captured: Captured) -> None:
    @art.trajectory
    def handle() -> Any:
        art.reward(1.0)
        return client.chat.completions.create(model="m", messages=user("hi")).choices[0].message.content

    art.uninstrument()
    try:
        assert handle() == "echo: hi"
    finally:
        art.instrument()
    run = captured()
    assert len(run.spans) == 1
    assert run.reward == 1.0


def test_instrumenting_twice_captures_once(client: Any, calls: Calls) -> None:
    art.instrument()
    art.instrument()

    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(model="m", messages=user("hi"))

    handle()
    assert len(calls()) == 1


async def test_calls_in_other_threads_belong_to_their_trajectory(client: Any, stored: Callable[[], Store]) -> None:
    @art.trajectory
    async def handle(name: str) -> None:
        await asyncio.gather(
            *(
                asyncio.to_thread(client.chat.completions.create, model="m", messages=user(f"{name}{n}"))
                for n in range(3)
            )
        )

    await asyncio.gather(handle("a"), handle("b"))
    for run in stored().trajectories():
        texts = sorted(s.attributes["gen_ai.input.messages"][0]["parts"][0]["content"] for s in run.spans[1:])
        assert texts == [f"{run.input['name']}{n}" for n in range(3)]


def test_a_conversation_with_tools_is_told_by_messages(client: Any, captured: Captured) -> None:
    @art.tool
    def get_weather(city: str) -> str:
        return f"sunny in {city}"

    @art.trajectory
    def handle(question: str) -> str:
        messages = user(question)
        while True:
            answer = client.chat.completions.create(model="m", messages=messages, tools=[WEATHER_TOOL])
            message = answer.choices[0].message
            if not message.tool_calls:
                return str(message.content)
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = get_weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    assert handle("weather in Rome and Oslo") == "It is sunny in Rome and sunny in Oslo"
    run = captured()
    assert [span.operation for span in run.spans] == ["invoke_agent", "chat", "execute_tool", "execute_tool", "chat"]
    assert {span.parent_id for span in run.spans[1:]} == {run.spans[0].span_id}
    assert run.messages() == [
        said("user", "weather in Rome and Oslo"),
        {"role": "assistant", "parts": [tool_call("Rome"), tool_call("Oslo")]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_rome", "response": "sunny in Rome"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_oslo", "response": "sunny in Oslo"}]},
        said("assistant", "It is sunny in Rome and sunny in Oslo"),
    ]


def test_an_llm_call_inside_a_tool_is_the_tools_child(client: Any, captured: Captured) -> None:
    @art.tool
    def summarise(text: str) -> str:
        return str(client.chat.completions.create(model="m", messages=user(text)).choices[0].message.content)

    @art.trajectory
    def handle() -> str:
        return summarise("hi")

    handle()
    root, tool, call = captured().spans
    assert tool.parent_id == root.span_id
    assert call.parent_id == tool.span_id
