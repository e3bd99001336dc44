"""OpenLLMetry (Traceloop): the conventions, and `traceloop.*` around them for agents, tools and decorated functions.

Tried with `opentelemetry-instrumentation-openai`, `-anthropic` and `-openai-agents` 0.62.
"""

from typing import TYPE_CHECKING

from ...capture import spans
from . import genai
from .reading import Reading, arguments_of, decoded

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

KIND = "traceloop.span.kind"
_OPERATIONS = {"workflow": spans.INVOKE_AGENT, "agent": spans.INVOKE_AGENT, "tool": spans.EXECUTE_TOOL}


def operation(span: "ReadableSpan") -> str | None:
    return _OPERATIONS.get(str((span.attributes or {})[KIND])) or genai.operation(span)


def read(span: "ReadableSpan", operation: str) -> Reading:
    a = span.attributes or {}
    reading = genai.read(span, operation)
    given, returned = (decoded(a.get(f"traceloop.entity.{end}")) for end in ("input", "output"))
    if operation == spans.EXECUTE_TOOL:
        reading.subject = str(a.get("gen_ai.tool.name") or a.get("traceloop.entity.name") or span.name)
        reading.attributes.setdefault(spans.TOOL_NAME, reading.subject)
        entity = {spans.TOOL_ARGUMENTS: arguments_of(given), spans.TOOL_RESULT: returned}
    elif operation == spans.INVOKE_AGENT:
        names = ("gen_ai.agent.name", "traceloop.entity.name", "traceloop.workflow.name")
        reading.subject = str(next((a[name] for name in names if a.get(name)), span.name))
        entity = {spans.INPUT: arguments_of(given), spans.OUTPUT: returned}
    else:
        return reading
    reading.content = {key: value for key, value in entity.items() if value is not None} | reading.content
    return reading
