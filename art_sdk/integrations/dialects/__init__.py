"""What the spans of other frameworks say, in the conventions' terms: one file per dialect.

A dialect tells by a span's attributes which operation of ours it is (`operation`), and reads it (`read`), at its
start as far as it is known then and again at its end. What is none of ours, such as a chain, a prompt or a
database query, has no operation. The texts come out as the dialect has them: nothing is made up.
"""

from types import ModuleType
from typing import TYPE_CHECKING

from . import genai, openinference, openllmetry, pydantic_ai
from .reading import Reading

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["Reading", "operation", "read"]


def operation(span: "ReadableSpan") -> str | None:
    """The operation of ours that this span is. None for all others, and while nothing says so yet."""
    dialect = _dialect(span)
    found: str | None = dialect.operation(span) if dialect else None
    return found


def read(span: "ReadableSpan") -> Reading | None:
    """What the span says. None for a span that is no operation of ours."""
    dialect = _dialect(span)
    if dialect is None or (found := dialect.operation(span)) is None:
        return None
    reading: Reading = dialect.read(span, found)
    return reading


def _dialect(span: "ReadableSpan") -> ModuleType | None:
    attributes = span.attributes or {}
    if openinference.KIND in attributes:
        return openinference
    if span.instrumentation_scope is not None and span.instrumentation_scope.name == pydantic_ai.SCOPE:
        return pydantic_ai
    if openllmetry.KIND in attributes:
        return openllmetry
    return genai if genai.OPERATION in attributes else None
