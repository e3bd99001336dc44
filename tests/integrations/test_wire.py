"""What providers send, in the terms of the conventions."""

import json
from typing import Any

import pytest

from art_sdk.integrations import wire
from art_sdk.integrations.messages import from_anthropic, from_openai


def sse(*events: Any) -> bytes:
    return b"".join(
        b"data: " + (e.encode() if isinstance(e, str) else json.dumps(e).encode()) + b"\n\n" for e in events
    )


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": fields}]}


def calls_of(*parts: list[dict[str, Any]]) -> list[tuple[Any, Any, Any]]:
    answer = wire.read_stream("/chat/completions", sse(*(delta(tool_calls=part) for part in parts)))
    (message,) = answer.messages
    return [(part["id"], part["name"], part["arguments"]) for part in message["parts"]]


def fragment(arguments: str, identity: str | None = None, **fields: Any) -> dict[str, Any]:
    name = {"name": "f"} if identity else {}
    return {**({"id": identity} if identity else {}), "function": {**name, "arguments": arguments}, **fields}


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", "/chat/completions"),
        ("/openai/deployments/x/chat/completions/", "/chat/completions"),
        ("/v1/completions", "/completions"),
        ("/v1/responses", "/responses"),
        ("/v1/messages", "/messages"),
        ("/v1/messages/count_tokens", None),
        ("/v1/embeddings", None),
        ("/v1/models", None),
    ],
)
def test_the_four_apis_are_recognised_by_path(path: str, api: str | None) -> None:
    assert wire.api_of(path) == api


def test_tool_calls_of_a_stream_are_kept_apart_by_index() -> None:
    assert calls_of(
        [fragment("", "a", index=0), fragment("", "b", index=1)], [fragment('{"x"', index=1)], [fragment("{}", index=0)]
    ) == [("a", "f", {}), ("b", "f", '{"x"')]


def test_tool_calls_that_all_have_the_same_index_are_kept_apart_by_id() -> None:
    assert calls_of(
        [fragment('{"x": 1}', "a", index=0)], [fragment('{"x"', "b", index=0)], [fragment(": 2}", index=0)]
    ) == [
        ("a", "f", {"x": 1}),
        ("b", "f", {"x": 2}),
    ]


def test_tool_calls_without_an_index_are_kept_apart_by_id() -> None:
    assert calls_of([fragment('{"x": 1}', "a")], [fragment('{"x"', "b")], [fragment(": 2}")]) == [
        ("a", "f", {"x": 1}),
        ("b", "f", {"x": 2}),
    ]


def test_an_enormous_index_costs_no_memory() -> None:
    assert calls_of([fragment("{}", "a", index=10**12)]) == [("a", "f", {})]


def test_reasoning_and_refusals_of_a_stream_are_parts() -> None:
    data = sse(
        delta(reasoning_content="let me "), delta(reasoning_content="see"), delta(content="4"), delta(refusal="no")
    )
    assert wire.read_stream("/chat/completions", data).messages[0]["parts"] == [
        {"type": "reasoning", "content": "let me see"},
        {"type": "text", "content": "4"},
        {"type": "refusal", "content": "no"},
    ]


@pytest.mark.parametrize("api", ["/chat/completions", "/completions", "/responses", "/messages"])
@pytest.mark.parametrize("data", [b"", b"data: {", b"<html>", b": ping\n\n", b"data: null\n\ndata: [1]\n\n"])
def test_a_stream_that_says_nothing_is_an_empty_answer(api: str, data: bytes) -> None:
    answer = wire.read_stream(api, data)
    assert (answer.messages, answer.attributes, answer.complete) == ([], {}, False)


def test_a_stream_cut_inside_an_event_keeps_the_events_before() -> None:
    data = sse(delta(content="one "), delta(content="two"))
    answer = wire.read_stream("/chat/completions", data[:-20])
    assert answer.messages[0]["parts"] == [{"type": "text", "content": "one "}]
    assert not answer.complete


def test_images_audio_and_files_are_kept_whole() -> None:
    message = from_openai(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                {"type": "input_audio", "input_audio": {"format": "wav", "data": "BBBB"}},
                {"type": "file", "file": {"file_id": "f1"}},
            ],
        }
    )
    assert message["parts"] == [
        {"type": "text", "content": "look"},
        {"type": "blob", "mime_type": "image/png", "content": "AAAA"},
        {"type": "uri", "uri": "https://x/y.png"},
        {"type": "blob", "mime_type": "audio/wav", "content": "BBBB"},
        {"type": "file", "file": {"file_id": "f1"}},
    ]


def test_anthropic_thinking_and_images_are_parts() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    message = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "image", "source": source}],
    }
    assert from_anthropic(message)["parts"] == [
        {"type": "reasoning", "content": "hm"},
        {"type": "blob", "mime_type": "image/png", "content": "AAAA"},
    ]


def test_broken_tool_arguments_stay_the_models_words() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": '{"x": '}}
    assert from_openai({"role": "assistant", "tool_calls": [call]})["parts"][0]["arguments"] == '{"x": '
