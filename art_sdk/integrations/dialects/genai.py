"""OpenTelemetry's GenAI conventions: `gen_ai.*`.

Spoken by `opentelemetry-instrumentation-genai-*` (1.3b0), by OpenLLMetry (0.62), by the anthropic SDK itself (2.14),
and by programs that write such spans themselves.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...capture import spans
from ..messages import Message, Part
from .reading import Attributes, Reading, decoded

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

OPERATION = spans.OPERATION
_OPERATIONS = {
    "chat": spans.CHAT,
    "generate_content": spans.CHAT,
    "text_completion": spans.TEXT_COMPLETION,
    "execute_tool": spans.EXECUTE_TOOL,
    "invoke_agent": spans.INVOKE_AGENT,
    "invoke_workflow": spans.INVOKE_AGENT,
}
_KEPT = ("gen_ai.request.", "gen_ai.response.", "gen_ai.usage.", "gen_ai.agent.", "gen_ai.conversation.")
_RENAMED = {
    "gen_ai.provider.name": spans.PROVIDER,
    "gen_ai.system": spans.PROVIDER,  # the name before 1.37
    "gen_ai.usage.prompt_tokens": spans.INPUT_TOKENS,
    "gen_ai.usage.completion_tokens": spans.OUTPUT_TOKENS,
    "gen_ai.usage.reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.tool.name": spans.TOOL_NAME,
    "gen_ai.tool.call.id": spans.TOOL_CALL_ID,
    "server.address": "server.address",
}


def operation(span: "ReadableSpan") -> str | None:
    return _OPERATIONS.get(str((span.attributes or {}).get(OPERATION)))


def read(span: "ReadableSpan", operation: str) -> Reading:
    a = span.attributes or {}
    match operation:
        case spans.EXECUTE_TOOL:
            content = {
                spans.TOOL_ARGUMENTS: decoded(a.get("gen_ai.tool.call.arguments")),
                spans.TOOL_RESULT: decoded(a.get("gen_ai.tool.call.result")),
            }
            subject = a.get("gen_ai.tool.name")
        case spans.INVOKE_AGENT:
            content = {spans.INPUT: input_messages(a), spans.OUTPUT: messages(a.get("gen_ai.output.messages"))}
            subject = a.get("gen_ai.agent.name") or a.get("gen_ai.workflow.name")
        case _:
            content = {
                spans.INPUT_MESSAGES: input_messages(a),
                spans.OUTPUT_MESSAGES: messages(a.get("gen_ai.output.messages")),
                spans.TOOL_DEFINITIONS: decoded(a.get("gen_ai.tool.definitions")),
            }
            subject = a.get("gen_ai.request.model") or a.get("gen_ai.response.model")
    return Reading(operation, str(subject or span.name), attributes(a), content)


def attributes(a: Attributes) -> dict[str, Any]:
    """Those of the conventions' attributes that are no content."""
    found = {key: value for key, value in a.items() if key.startswith(_KEPT) and key not in _RENAMED}
    return {new: a[old] for old, new in reversed(_RENAMED.items()) if old in a} | found


def input_messages(a: Attributes) -> list[Message]:
    """What the model was told, its instructions first."""
    instructions = _parts(decoded(a.get("gen_ai.system_instructions")) or ())
    system: list[Message] = [{"role": "system", "parts": instructions}] if instructions else []
    return system + messages(a.get("gen_ai.input.messages"))


def messages(value: Any) -> list[Message]:
    given = decoded(value)
    if not isinstance(given, list | tuple):
        return []
    return [
        {"role": message.get("role", "assistant"), "parts": _parts(message.get("parts") or ())}
        for message in given
        if isinstance(message, dict)
    ]


def _parts(parts: Iterable[Any]) -> list[Part]:
    return list(_read_parts(parts))


def _read_parts(parts: Iterable[Any]) -> Iterator[Part]:
    for part in parts:
        if not isinstance(part, dict):
            yield {"type": "text", "content": str(part)}
            continue
        known = {key: value for key, value in part.items() if value is not None or key == "response"}
        if known.get("type") == "tool_call":
            known["arguments"] = decoded(known.get("arguments"))
        if known.get("type") == "tool_call_response" and "result" in known:  # pydantic-ai's name for it
            known["response"] = known.pop("result")
        yield known
