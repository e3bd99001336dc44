"""What providers send, in the terms of the conventions."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_sdk.integrations import wire
from art_sdk.integrations.messages import from_anthropic, from_openai, from_responses_item


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


def test_a_spoken_answer_is_a_reference_to_its_sound() -> None:
    audio = {"id": "audio_1", "data": "UklGRg==" * 9, "expires_at": 17, "transcript": "hello"}
    assert from_openai({"role": "assistant", "content": None, "audio": audio})["parts"] == [
        {"type": "file", "modality": "audio", "file_id": "audio_1", "expires_at": 17, "transcript": "hello"}
    ]
    assert from_openai({"role": "assistant", "audio": {"id": "audio_1"}})["parts"] == [
        {"type": "file", "modality": "audio", "file_id": "audio_1"}
    ]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ({"type": "url", "url": "https://x/y.png"}, {"type": "uri", "uri": "https://x/y.png"}),
        ({"type": "file", "file_id": "f1"}, {"type": "file", "file_id": "f1"}),
        (
            {"type": "text", "media_type": "text/plain", "data": "words"},
            {"type": "image", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
        ),
    ],
)
def test_anthropic_images_by_reference_and_documents_are_kept(source: Any, part: Any) -> None:
    message = {"role": "user", "content": [{"type": "image", "source": source}]}
    assert from_anthropic(message)["parts"] == [part]


def test_sealed_reasoning_is_kept_so_that_it_can_be_sent_again() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "c2VhbGVk"},
    ]
    assert from_anthropic({"role": "assistant", "content": blocks})["parts"] == [
        {"type": "reasoning", "content": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "c2VhbGVk"},
    ]
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "c2ln"}
    assert from_responses_item(item)["parts"] == [
        {"type": "reasoning", "content": "hm", "encrypted_content": "c2ln"},
    ]


def test_custom_tool_calls_and_their_results_are_tool_calls() -> None:
    call = {"type": "custom_tool_call", "call_id": "a", "name": "run", "input": "print(1)"}
    result = {"type": "custom_tool_call_output", "call_id": "a", "output": "1"}
    assert [from_responses_item(item)["parts"][0] for item in (call, result)] == [
        {"type": "tool_call", "id": "a", "name": "run", "arguments": "print(1)"},
        {"type": "tool_call_response", "id": "a", "response": "1"},
    ]


def test_an_item_of_a_kind_that_is_not_known_is_kept_as_it_came() -> None:
    item = {"type": "image_generation_call", "id": "ig", "result": "AAAA", "status": "completed"}
    assert from_responses_item(item) == {"role": "assistant", "parts": [item]}


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def test_a_cut_responses_stream_keeps_reasoning_refusals_calls_and_words_apart() -> None:
    data = sse(
        event("response.created", response={"id": "r1", "model": "m", "status": "in_progress", "output": []}),
        event("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="let me "),
        event("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="see"),
        event("response.output_text.delta", output_index=1, content_index=0, delta="one"),
        event("response.refusal.delta", output_index=1, content_index=1, delta="no"),
        event(
            "response.output_item.added", output_index=3, item={"type": "function_call", "call_id": "b", "name": "g"}
        ),
        event(
            "response.output_item.added", output_index=2, item={"type": "function_call", "call_id": "a", "name": "f"}
        ),
        event("response.function_call_arguments.delta", output_index=3, delta='{"y": 2}'),
        event("response.function_call_arguments.delta", output_index=2, delta='{"x"'),
        event("response.custom_tool_call_input.delta", output_index=4, delta="print"),
    )
    answer = wire.read_stream("/responses", data)
    assert answer.attributes == {"gen_ai.response.id": "r1", "gen_ai.response.model": "m"}
    assert [message["parts"] for message in answer.messages] == [
        [{"type": "reasoning", "content": "let me see"}],
        [{"type": "text", "content": "one"}, {"type": "refusal", "content": "no"}],
        [{"type": "tool_call", "id": "a", "name": "f", "arguments": '{"x"'}],
        [{"type": "tool_call", "id": "b", "name": "g", "arguments": {"y": 2}}],
        [{"type": "tool_call", "id": None, "name": None, "arguments": "print"}],
    ]
    assert not answer.complete


def test_an_enormous_index_of_a_part_costs_no_memory() -> None:
    data = sse(event("response.output_text.delta", output_index=10**12, content_index=10**12, delta="a"))
    assert wire.read_stream("/responses", data).messages[0]["parts"] == [{"type": "text", "content": "a"}]


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("/chat/completions", {"error": {"code": "busy", "message": "too many"}}),
        ("/responses", {"type": "error", "code": "busy", "message": "too many"}),
        ("/responses", {"type": "response.failed", "response": {"error": {"code": "busy", "message": "too many"}}}),
        ("/messages", {"type": "error", "error": {"type": "busy", "message": "too many"}}),
    ],
)
def test_an_error_event_is_an_error(api: str, body: Any) -> None:
    assert wire.read_stream(api, sse(body)).error == "busy too many"


def test_a_failed_response_is_an_error() -> None:
    body = {"id": "r", "status": "failed", "error": {"code": "busy", "message": "too many"}, "output": []}
    assert wire.read_answer("/responses", body).error == "busy too many"
    assert wire.read_answer("/responses", {"id": "r", "status": "completed", "error": None}).error is None


@pytest.mark.parametrize(
    ("api", "data"),
    [
        ("/chat/completions", [delta(content="a"), {"id": "c1", "choices": [], "usage": {"prompt_tokens": 3}}]),
        ("/completions", [{"id": "c1", "choices": [{"text": "a"}], "usage": {"prompt_tokens": 3}}]),
        (
            "/responses",
            [event("response.completed", response={"id": "c1", "status": "completed", "usage": {"input_tokens": 3}})],
        ),
        ("/messages", [event("message_start", message={"id": "c1", "usage": {"input_tokens": 3}})]),
    ],
)
def test_the_id_and_usage_of_a_stream_are_kept(api: str, data: list[Any]) -> None:
    attributes = wire.read_stream(api, sse(*data)).attributes
    assert attributes["gen_ai.response.id"] == "c1"
    assert attributes["gen_ai.usage.input_tokens"] == 3


KEYS = [
    "type",
    "index",
    "delta",
    "content",
    "choices",
    "message",
    "text",
    "tool_calls",
    "function",
    "name",
    "arguments",
]
KEYS += ["id", "usage", "error", "item", "output_index", "content_index", "response", "output", "summary", "thinking"]
KEYS += ["content_block", "partial_json", "audio", "finish_reason", "stop_reason", "role", "parts", "image_url", "url"]
KEYS += ["source", "input_audio", "file", "prompt_tokens", "completion_tokens_details", "status", "part"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
KINDS = [*wire._RESPONSES_DELTAS, *wire._CALL_DELTAS, "message_start", "content_block_start", "content_block_delta"]
events = st.dictionaries(st.sampled_from(KEYS), anything, max_size=6) | st.builds(
    lambda kind, fields: {**fields, "type": kind},
    st.sampled_from([*KINDS, "message_delta", "response.output_item.added", "response.completed", "error"]),
    st.dictionaries(st.sampled_from(KEYS), anything, max_size=6),
)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["/chat/completions", "/completions", "/responses", "/messages"]), st.lists(events, max_size=8))
def test_an_event_unlike_any_costs_no_more_than_itself(api: str, odd: list[Any]) -> None:
    good: dict[str, list[Any]] = {
        "/chat/completions": [delta(content="good")],
        "/completions": [{"choices": [{"index": 0, "text": "good"}]}],
        "/responses": [event("response.output_text.delta", output_index=7, content_index=0, delta="good")],
        "/messages": [event("content_block_delta", index=7, delta={"text": "good"})],
    }
    try:
        answer = wire.read_stream(api, sse(*good[api], *odd))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise AssertionError(odd) from error
    assert answer.complete == ("gen_ai.response.finish_reasons" in answer.attributes)


@given(st.sampled_from(["/chat/completions", "/completions", "/responses", "/messages"]), anything)
def test_a_request_unlike_any_is_read_as_far_as_it_goes(api: str, body: Any) -> None:
    if isinstance(body, dict):
        body["model"] = "m"
        body["messages"] = [body.get("content"), {"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}]
    read = wire.read_request(api, json.dumps(body).encode())
    for item in read.messages if read is not None else ():
        assert "parts" in item.read()
