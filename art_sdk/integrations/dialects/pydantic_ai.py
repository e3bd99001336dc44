"""Pydantic AI: the conventions; an agent's conversation and result are in attributes of its own.

Tried with pydantic-ai 2.68, instrumentation versions 2 to 6.
"""

from itertools import takewhile
from typing import TYPE_CHECKING

from ...capture import spans
from . import genai
from .reading import Reading, decoded

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

SCOPE = "pydantic-ai"


def operation(span: "ReadableSpan") -> str | None:
    a = span.attributes or {}
    if genai.OPERATION in a:
        return genai.operation(span)
    if "gen_ai.tool.name" in a:  # version 2
        return spans.EXECUTE_TOOL
    return spans.INVOKE_AGENT if "agent_name" in a else None


def read(span: "ReadableSpan", operation: str) -> Reading:
    a = span.attributes or {}
    reading = genai.read(span, operation)
    if operation == spans.EXECUTE_TOOL:
        own = {
            spans.TOOL_ARGUMENTS: decoded(a.get("tool_arguments")),
            spans.TOOL_RESULT: decoded(a.get("tool_response")),
        }
    elif operation == spans.INVOKE_AGENT:
        reading.subject = str(a.get("gen_ai.agent.name") or a.get("agent_name") or span.name)
        conversation = genai.messages(a.get("pydantic_ai.all_messages"))
        own = {
            spans.INPUT: list(takewhile(lambda message: message["role"] != "assistant", conversation)) or None,
            spans.OUTPUT: decoded(a.get("final_result")),
        }
    else:
        return reading
    reading.content |= {key: value for key, value in own.items() if value is not None}
    return reading
