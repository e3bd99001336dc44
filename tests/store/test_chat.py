"""Messages in the providers' forms: what was captured from one comes out as that one takes it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_sdk.integrations.messages import anthropic_system, from_anthropic, from_openai
from art_sdk.store.chat import to_anthropic, to_openai, to_openai_tool

CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": 17}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "You are a desk."},
        {"role": "user", "content": "Where is it?"},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"format": "wav", "data": "aGVsbG8="}}]},
        {"role": "assistant", "content": "It is lost."},
        {"role": "assistant", "content": "", "x": None},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": "I will look.", "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {"role": "assistant", "content": "So.", "reasoning_content": "Let me think."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "tool", "tool_call_id": "c1", "content": "lost"},
    ],
)
def test_a_message_of_openais_comes_out_as_it_went_in(message: dict[str, Any]) -> None:
    message = {key: value for key, value in message.items() if key != "x"}
    assert to_openai([from_openai(message)]) == [message]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "Lost."}],
        [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "I will."},
                    {"type": "tool_use", "id": "c1", "name": "look_up", "input": {"order": 17}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "lost"}]},
        ],
        [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}}]}],
        [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
                ],
            }
        ],
    ],
)
def test_messages_of_anthropics_come_out_as_they_went_in(messages: list[dict[str, Any]]) -> None:
    assert to_anthropic(map(from_anthropic, messages)) == messages


def test_a_conversation_with_openai_becomes_one_that_anthropic_takes() -> None:
    asked = [
        {"role": "system", "content": "You are a desk."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "lost"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "found"}]},
    ]
    system, question, calls, results = to_anthropic(map(from_openai, asked))
    assert system == {"role": "system", "content": "You are a desk."}
    assert question == {"role": "user", "content": "Look."}
    assert [block["input"] for block in calls["content"]] == [{"order": 17}, {"order": 17}]
    assert results["role"] == "user"
    assert [block["tool_use_id"] for block in results["content"]] == ["c1", "c2"]


def test_a_conversation_with_anthropic_becomes_one_that_openai_takes() -> None:
    asked = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look_up", "input": {"order": 17}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "lost"},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    assert to_openai([anthropic_system("You are a desk."), *map(from_anthropic, asked)]) == [
        {"role": "system", "content": "You are a desk."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "lost"},
        {"role": "user", "content": "And now?"},
    ]


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "look_up", "description": "Look.", "parameters": {"type": "object"}}},
        {"type": "function", "name": "look_up", "description": "Look.", "parameters": {"type": "object"}},
        {"name": "look_up", "description": "Look.", "input_schema": {"type": "object"}},
    ],
)
def test_a_tool_of_any_api_is_one_of_openais(tool: dict[str, Any]) -> None:
    described = {"name": "look_up", "description": "Look.", "parameters": {"type": "object"}}
    assert to_openai_tool(tool) == {"type": "function", "function": described}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
odd = json_values | st.fixed_dictionaries({"role": json_values, "parts": json_values})


@given(st.lists(odd, max_size=3))
def test_what_a_mask_has_made_of_a_message_is_no_fault(messages: list[Any]) -> None:
    for message in [*to_openai(messages), *to_anthropic(messages)]:
        assert isinstance(message["role"], str)
        assert "content" in message
