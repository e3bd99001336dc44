"""OpenInference (Arize): `openinference.span.kind`, and messages flattened into attributes.

Tried with the instrumentations of openai 0.1.66, anthropic 3.1, smolagents 0.1.43, openai-agents 2.6 and
pydantic-ai 0.1.30.
"""

from typing import TYPE_CHECKING, Any

from ...capture import spans
from .. import wire
from ..messages import Message, from_openai, text
from .reading import Attributes, Reading, arguments_of, decoded

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

KIND = "openinference.span.kind"
_OPERATIONS = {"LLM": spans.CHAT, "TOOL": spans.EXECUTE_TOOL, "AGENT": spans.INVOKE_AGENT}


def operation(span: "ReadableSpan") -> str | None:
    a = span.attributes or {}
    if a[KIND] == "LLM" and any(key.startswith("llm.prompts.") for key in a):
        return spans.TEXT_COMPLETION
    return _OPERATIONS.get(str(a[KIND]))


def read(span: "ReadableSpan", operation: str) -> Reading:
    a = span.attributes or {}
    match operation:
        case spans.EXECUTE_TOOL:
            return _tool(span, a)
        case spans.INVOKE_AGENT:
            name = str(a.get("agent.name") or span.name)
            content = {spans.INPUT: decoded(a.get("input.value")), spans.OUTPUT: decoded(a.get("output.value"))}
            return Reading(operation, name, {spans.AGENT_NAME: name}, content)
        case _:
            return _call(span, a, operation)


def _tool(span: "ReadableSpan", a: Attributes) -> Reading:
    name = str(a.get("tool.name") or span.name)
    identity = a.get("tool.id") or a.get("tool_call.id")
    return Reading(
        spans.EXECUTE_TOOL,
        name,
        {spans.TOOL_NAME: name, spans.TOOL_CALL_ID: identity},
        {
            spans.TOOL_ARGUMENTS: arguments_of(decoded(a.get("input.value"))),
            spans.TOOL_RESULT: decoded(a.get("output.value")),
        },
    )


def _call(span: "ReadableSpan", a: Attributes, operation: str) -> Reading:
    parameters = decoded(a.get("llm.invocation_parameters"))
    asked = parameters if isinstance(parameters, dict) else {}
    model = a.get("llm.model_name") or asked.get("model")
    answer = decoded(a.get("output.value"))
    finish = a.get("llm.finish_reason")
    attributes = wire.parameters(asked.get) | {
        spans.REQUEST_MODEL: model,
        spans.PROVIDER: a.get("llm.provider") or a.get("llm.system"),
        spans.RESPONSE_ID: answer.get("id") if isinstance(answer, dict) else None,
        spans.FINISH_REASONS: [finish] if finish else None,
        spans.INPUT_TOKENS: a.get("llm.token_count.prompt"),
        spans.OUTPUT_TOKENS: a.get("llm.token_count.completion"),
        "gen_ai.usage.reasoning.output_tokens": a.get("llm.token_count.completion_details.reasoning"),
        "gen_ai.usage.cache_read.input_tokens": a.get("llm.token_count.prompt_details.cache_read"),
    }
    llm = _nested(a, "llm.")
    content = {
        spans.INPUT_MESSAGES: _messages(llm.get("input_messages")) or _prompts(llm.get("prompts"), "prompt", "user"),
        spans.OUTPUT_MESSAGES: _messages(llm.get("output_messages"))
        or _prompts(llm.get("choices"), "completion", "assistant"),
        spans.TOOL_DEFINITIONS: [decoded(tool["tool"]["json_schema"]) for tool in _items(llm.get("tools"))],
    }
    return Reading(operation, str(model or span.name), attributes, content)


def _nested(a: Attributes, prefix: str) -> dict[str, Any]:
    """`{"x.0.y": 1}` as `{"x": {"0": {"y": 1}}}`. A value whose name is also a prefix of others gives way."""
    root: dict[str, Any] = {}
    for key, value in a.items():
        if not key.startswith(prefix):
            continue
        *path, last = key.removeprefix(prefix).split(".")
        node = root
        for name in path:
            below = node.get(name)
            if not isinstance(below, dict):
                below = node[name] = {}
            node = below
        if not isinstance(node.get(last), dict):
            node[last] = value
    return root


def _items(numbered: Any) -> list[Any]:
    if not isinstance(numbered, dict):
        return []
    return [numbered[index] for index in sorted(numbered, key=int)]


def _messages(numbered: Any) -> list[Message]:
    return [_message(item.get("message") or {}) for item in _items(numbered)]


def _message(message: dict[str, Any]) -> Message:
    calls = [item["tool_call"] for item in _items(message.get("tool_calls"))]
    contents = [
        _part(item.get("message_content") or {}, item.get("tool_call")) for item in _items(message.get("contents"))
    ]
    return from_openai(
        {
            "role": message.get("role", "assistant"),
            "content": message.get("content") or [part for part in contents if part is not None],
            "tool_calls": calls,
            "tool_call_id": message.get("tool_call_id"),
        }
    )


def _part(part: dict[str, Any], call: Any) -> dict[str, Any] | None:
    match part.get("type"):
        case "text":
            return {"type": "text", "text": part.get("text", "")}
        case "image":
            return {"type": "image_url", "image_url": {"url": part["image"]["image"]["url"]}}
        case "tool_use" if call:  # it is among the message's tool calls, too
            return None
        case _:
            return part


def _prompts(numbered: Any, name: str, role: str) -> list[Message]:
    return [{"role": role, "parts": [text(str(item[name].get("text", "")))]} for item in _items(numbered)]
