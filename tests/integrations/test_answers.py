"""What models answer with, beyond words: reasoning, sound, several choices, structured output, tools in parallel."""

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel
from stub_api import StubApi

import art_sdk as art
from art_sdk.store.reading import Span

from .said import said, tool_call, user

Calls = Callable[[], list[Span]]

SEEN = {"type": "reasoning", "content": "let me see"}


@pytest.fixture
def client(api: StubApi) -> Any:
    with openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(api: StubApi) -> Any:
    with anthropic.Anthropic(base_url=api.url, api_key="x", max_retries=0) as made:
        yield made


class City(BaseModel):
    city: str


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_of_chat_models_is_kept(client: Any, calls: Calls, stream: bool) -> None:
    @art.trajectory
    def handle() -> None:
        answer = client.chat.completions.create(model="m", messages=user("think"), stream=stream)
        if stream:
            list(answer)

    handle()
    (message,) = calls()[0].attributes["gen_ai.output.messages"]
    assert message["parts"] == [SEEN, {"type": "text", "content": "echo: think"}]


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_of_responses_is_kept(client: Any, calls: Calls, stream: bool) -> None:
    @art.trajectory
    def handle() -> None:
        answer = client.responses.create(model="m", input="think", stream=stream)
        if stream:
            list(answer)

    handle()
    assert calls()[0].attributes["gen_ai.output.messages"] == [
        {"role": "assistant", "parts": [SEEN]},
        said("assistant", "echo: think"),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_thinking_is_kept(claude: Any, calls: Calls, stream: bool) -> None:
    @art.trajectory
    def handle() -> None:
        ask = {"model": "c", "max_tokens": 9, "messages": user("think")}
        if stream:
            with claude.messages.stream(**ask) as events:
                events.get_final_message()
        else:
            claude.messages.create(**ask)

    handle()
    (message,) = calls()[0].attributes["gen_ai.output.messages"]
    assert message["parts"] == [SEEN | {"signature": "c2lnbmVk"}, {"type": "text", "content": "echo: think"}]


@pytest.mark.parametrize("stream", [False, True])
def test_sound_is_kept_as_a_reference(client: Any, calls: Calls, stream: bool) -> None:
    @art.trajectory
    def handle() -> None:
        answer = client.chat.completions.create(
            model="m",
            modalities=["text", "audio"],
            audio={"voice": "ash", "format": "wav"},
            messages=user("say hello"),
            stream=stream,
        )
        if stream:
            list(answer)

    handle()
    (message,) = calls()[0].attributes["gen_ai.output.messages"]
    assert message["parts"] == [
        {
            "type": "file",
            "modality": "audio",
            "file_id": "audio_1",
            "expires_at": 2_000_000_000,
            "transcript": "hello",
        }
    ]


def test_streamed_choices_are_kept_apart(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        list(client.chat.completions.create(model="m", messages=user("a b"), n=3, stream=True))

    handle()
    (span,) = calls()
    assert span.attributes["gen_ai.output.messages"] == [said("assistant", "echo: a b")] * 3
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"] * 3


def test_structured_output_is_a_span_also_where_it_cannot_be_parsed(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with pytest.raises(ValueError, match="City"):
            client.chat.completions.parse(model="m", messages=user("Rome"), response_format=City)
        with pytest.raises(ValueError, match="City"):
            client.responses.parse(model="m", input="Rome", text_format=City)

    handle()
    assert [span.attributes["gen_ai.output.messages"] for span in calls()] == [[said("assistant", "echo: Rome")]] * 2
    assert [span.error for span in calls()] == [None, None]  # the model did answer


def test_the_sdks_own_stream_helpers_are_captured(client: Any, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with client.chat.completions.stream(model="m", messages=user("chat")) as stream:
            assert stream.get_final_completion().choices[0].message.content == "echo: chat"
        with client.responses.stream(model="m", input="responses") as stream:
            assert stream.get_final_response().output_text == "echo: responses"

    handle()
    assert [span.attributes["gen_ai.output.messages"] for span in calls()] == [
        [said("assistant", "echo: chat")],
        [said("assistant", "echo: responses")],
    ]
    assert [span.attributes["art.stream.end"] for span in calls()] == ["done"] * 2


async def test_async_raw_and_streaming_responses_are_captured(api: StubApi, calls: Calls) -> None:
    @art.trajectory
    async def handle() -> None:
        async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as client:
            raw = await client.chat.completions.with_raw_response.create(model="m", messages=user("raw"))
            assert raw.parse().choices[0].message.content == "echo: raw"
            responses = client.responses.with_streaming_response
            async with responses.create(model="m", input="later") as response:
                assert (await response.parse()).output_text == "echo: later"
            stream = await client.responses.create(model="m", input="last", stream=True)
            assert [event async for event in stream][-1].type == "response.completed"

    await handle()
    assert [span.attributes["gen_ai.output.messages"] for span in calls()] == [
        [said("assistant", f"echo: {words}")] for words in ("raw", "later", "last")
    ]


async def test_all_parallel_tool_calls_of_async_streams_are_kept(api: StubApi, calls: Calls) -> None:
    ask = "weather in Rome and Oslo and Lima"
    tools: Any = [{"type": "function", "function": {"name": "get_weather"}}]

    @art.trajectory
    async def handle() -> None:
        async with openai.AsyncOpenAI(base_url=api.openai_url, api_key="x") as client:
            async for _ in await client.chat.completions.create(
                model="m", messages=user(ask), tools=tools, stream=True
            ):
                pass
            async for _ in await client.responses.create(model="m", input=ask, tools=tools, stream=True):
                pass
        async with (
            anthropic.AsyncAnthropic(base_url=api.url, api_key="x") as claude,
            claude.messages.stream(model="c", max_tokens=9, messages=user(ask), tools=tools) as stream,
        ):
            await stream.get_final_message()

    await handle()
    for span in calls():
        parts = [part for message in span.attributes["gen_ai.output.messages"] for part in message["parts"]]
        assert parts == [tool_call("Rome"), tool_call("Oslo"), tool_call("Lima")]


async def test_async_anthropic_messages_are_captured(api: StubApi, calls: Calls) -> None:
    @art.trajectory
    async def handle() -> None:
        async with anthropic.AsyncAnthropic(base_url=api.url, api_key="x") as claude:
            await claude.messages.create(model="c", max_tokens=9, messages=user("hi"))
            stream = await claude.messages.create(model="c", max_tokens=9, messages=user("ho"), stream=True)
            assert [event async for event in stream][-1].type == "message_stop"

    await handle()
    assert [span.attributes["gen_ai.output.messages"] for span in calls()] == [
        [said("assistant", "echo: hi")],
        [said("assistant", "echo: ho")],
    ]
    assert all(span.attributes["gen_ai.response.id"].startswith("msg_") for span in calls())


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": "BBBB"}},
    ],
)
def test_images_and_sound_that_are_sent_are_kept(client: Any, calls: Calls, part: Any) -> None:
    @art.trajectory
    def handle() -> None:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": [part]}])

    handle()
    (message,) = calls()[0].attributes["gen_ai.input.messages"]
    assert message["parts"][0]["type"] in ("blob", "uri")
    assert str(message["parts"][0]).count("AAAA") + str(message).count("BBBB") + str(message).count("y.png") == 1
