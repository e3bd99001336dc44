"""Spans: OpenTelemetry spans with the GenAI conventions, on a provider of our own.

The provider is private, always on and without attribute limits, so nothing in the user's
OpenTelemetry set-up can switch it off or cut it short; the user's global provider and current span
are never touched. Each span goes to the journal when it starts and when it ends.

Messages are no attributes of the span: they are content, written once per trajectory under their
hash, and the span holds the hashes (`art.input.messages`). The store puts them together again.
"""

import logging
import os
import re
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    format_span_id,
    format_trace_id,
)
from opentelemetry.trace.propagation import set_span_in_context

from . import journal
from .content import clean, to_content
from .records import Content, SpanEnd, SpanStart

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer

log = logging.getLogger("art_sdk.capture")

# Names of the GenAI semantic conventions (all still "Development": the values are what is stable).
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
AGENT_NAME = "gen_ai.agent.name"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"

CHAT = "chat"
TEXT_COMPLETION = "text_completion"
EXECUTE_TOOL = "execute_tool"
INVOKE_AGENT = "invoke_agent"
LLM_OPERATIONS = frozenset({CHAT, TEXT_COMPLETION})

# Content on a span, by hash. The store shows each under the conventions' name.
INPUT_MESSAGES = "art.input.messages"
OUTPUT_MESSAGES = "art.output.messages"
TOOL_DEFINITIONS = "art.tool.definitions"
TOOL_ARGUMENTS = "art.tool.call.arguments"
TOOL_RESULT = "art.tool.call.result"
INPUT = "art.input"
OUTPUT = "art.output"

TRAJECTORY_HEADER = "x-art-trajectory"
"""Request header `<trace id>-<span id>`: which trajectory and LLM call a request to the gateway belongs to."""

# On the root span of a trajectory.
TRAJECTORY_NAME = "art.trajectory.name"
POLICY = "art.policy"
GROUP_ID = "art.group.id"
TASK_KEY = "art.task.key"
TRAIN = "art.train"
STATUS = "art.status"
METADATA = "art.metadata"
PARENT_TRAJECTORY = "art.parent.trajectory"
REWARD_ERROR = "art.reward.error"

_SPAN_KEY = otel_context.create_key("art-sdk-span")
_TRAJECTORY_KEY = otel_context.create_key("art-sdk-trajectory")
_LLM_CALL_KEY = otel_context.create_key("art-sdk-llm-call")


@dataclass(eq=False)
class LiveTrajectory:
    """A trajectory while its function runs: what `art.current_trajectory()` returns.

    `id` is all that another process needs to give a reward later.
    """

    id: str
    name: str
    root: Span
    rewards: dict[str, float] = field(default_factory=dict)
    written: set[str] = field(default_factory=set, repr=False)


@cache
def _tracer() -> "Tracer":
    # The SDK costs 35 ms: it is imported with the first span, not with this library.
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    class OsRandomIds(IdGenerator):
        """The SDK's own generator uses `random`, which agents and tests seed: ids would repeat."""

        def generate_span_id(self) -> int:
            return int.from_bytes(os.urandom(8)) or 1

        def generate_trace_id(self) -> int:
            return int.from_bytes(os.urandom(16)) or 1

    no_limit = SpanLimits.UNSET
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.get_empty(),
        shutdown_on_exit=False,
        id_generator=OsRandomIds(),
        span_limits=SpanLimits(no_limit, no_limit, no_limit, no_limit, no_limit, no_limit, no_limit, no_limit),
    )
    provider._disabled = False  # OTEL_SDK_DISABLED is about the user's telemetry, this is training data
    provider.add_span_processor(_journal_processor())
    return provider.get_tracer("art_sdk")


def _journal_processor() -> Any:
    from opentelemetry.sdk.trace import SpanProcessor

    class JournalProcessor(SpanProcessor):
        def on_start(self, span: Span, parent_context: otel_context.Context | None = None) -> None:
            readable: ReadableSpan = span  # type: ignore[assignment]
            journal.append(SpanStart(**_identity(readable), attributes=dict(readable.attributes or {})))

        def on_end(self, span: "ReadableSpan") -> None:
            journal.append(
                SpanEnd(
                    **_identity(span),
                    ended_at=span.end_time or span.start_time or 0,
                    attributes=dict(span.attributes or {}),
                    error=span.status.description if span.status.status_code is StatusCode.ERROR else None,
                )
            )

    return JournalProcessor()


def _identity(span: "ReadableSpan") -> dict[str, Any]:
    assert span.context is not None
    return {
        "trajectory_id": format_trace_id(span.context.trace_id),
        "span_id": format_span_id(span.context.span_id),
        "parent_id": format_span_id(span.parent.span_id) if span.parent else None,
        "name": span.name,
        "started_at": span.start_time or 0,
    }


def start_root(name: str, attributes: Mapping[str, Any], inputs: Any) -> LiveTrajectory:
    """Start a trajectory: a span in a trace of its own, whatever is current."""
    content = to_content(inputs)
    journal.append(content)
    span = _tracer().start_span(
        f"{INVOKE_AGENT} {name}",
        context=otel_context.Context(),
        attributes={OPERATION: INVOKE_AGENT, INPUT: content.hash, **attributes},
    )
    identity = format_trace_id(span.get_span_context().trace_id)
    return LiveTrajectory(id=identity, name=name, root=span, written={content.hash})


def lost_root(name: str) -> LiveTrajectory:
    """A trajectory whose start failed: it has an id like any other, and nothing inside it is recorded."""
    trace_id = int.from_bytes(os.urandom(16)) or 1
    root = NonRecordingSpan(SpanContext(trace_id, span_id=int.from_bytes(os.urandom(8)) or 1, is_remote=False))
    return LiveTrajectory(id=format_trace_id(trace_id), name=name, root=root)


def start_span(operation: str, subject: str, attributes: Mapping[str, Any], parent: Span | None = None) -> Span:
    """Start a span named by the conventions (`chat gpt-5`) under `parent`, or under the current span.

    Only inside a trajectory: the caller has checked `current_trajectory()`.
    """
    parent = parent or current_span()
    if parent is None:
        raise RuntimeError(f"a span {operation!r} outside a trajectory")
    return _tracer().start_span(
        f"{operation} {subject}".strip(),
        context=set_span_in_context(parent, otel_context.Context()),
        kind=SpanKind.CLIENT if operation in LLM_OPERATIONS else SpanKind.INTERNAL,
        attributes={OPERATION: operation, **attributes},
    )


def set_content(span: Span, trajectory: LiveTrajectory, attribute: str, value: Any) -> None:
    """Write one value as content and note its hash on the span."""
    span.set_attribute(attribute, write_content(trajectory, value))


def set_contents(span: Span, trajectory: LiveTrajectory, attribute: str, values: Sequence[Any]) -> None:
    """Write each value (a message, a tool definition) as content and note the hashes on the span."""
    span.set_attribute(attribute, write_contents(trajectory, values))


def write_content(trajectory: LiveTrajectory, value: Any) -> str:
    """Write one value as content. Its hash goes on a span: what is known at its start, with its start."""
    return write_contents(trajectory, [value])[0]


def write_contents(trajectory: LiveTrajectory, values: Sequence[Any]) -> list[str]:
    """Write each value as content, once per trajectory, and return the hashes."""
    contents = [to_content(value) for value in values]
    new: dict[str, Content] = {c.hash: c for c in contents if c.hash not in trajectory.written}
    if new:
        journal.append(*new.values())
        trajectory.written.update(new)
    return [content.hash for content in contents]


def fail(span: Span, error: BaseException) -> None:
    """Mark the span as failed by `error`, or as cancelled. It still has to be ended."""
    if is_cancel(error):
        span.set_attribute(STATUS, "cancelled")
        return
    span.set_attribute(ERROR_TYPE, type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, describe(error)))


def is_cancel(error: BaseException) -> bool:
    """The caller stopped waiting or listening: nothing went wrong."""
    return isinstance(error, CancelledError | GeneratorExit | KeyboardInterrupt)


def describe(error: BaseException) -> str:
    """The error's type and words, without the queries and passwords of URLs in it, where keys are."""
    try:
        words = clean(str(error))
    except Exception:  # its own `__str__` is broken
        words = "(no message)"
    return f"{type(error).__name__}: {_URL_SECRETS.sub(_without_secrets, words)}"


_URL_SECRETS = re.compile(r"(\w+://)([^\s/?#'\"]*@)?([^\s?#'\"]*)(\?[^\s'\"]*)?")


def _without_secrets(url: re.Match[str]) -> str:
    scheme, user, rest, query = url.groups()
    return f"{scheme}{'***@' if user else ''}{rest}{'?***' if query else ''}"


def span_id(span: Span) -> str:
    return format_span_id(span.get_span_context().span_id)


def current_span() -> Span | None:
    """The innermost span of ours in the current OpenTelemetry context."""
    span: Span | None = otel_context.get_value(_SPAN_KEY)  # type: ignore[assignment]
    return span


def current_trajectory() -> LiveTrajectory | None:
    """The trajectory in the current OpenTelemetry context."""
    trajectory: LiveTrajectory | None = otel_context.get_value(_TRAJECTORY_KEY)  # type: ignore[assignment]
    return trajectory


def llm_call() -> Span | None:
    """The span of the LLM call that a framework has open here: an HTTP request inside belongs to it."""
    find: Callable[[], Span | None] | None = otel_context.get_value(_LLM_CALL_KEY)  # type: ignore[assignment]
    return find() if find else None


@contextmanager
def attached(context: otel_context.Context) -> Iterator[None]:
    token = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(token)


def trajectory_context(trajectory: LiveTrajectory) -> otel_context.Context:
    """The current context with `trajectory` as the current trajectory and its root as the current span."""
    context = otel_context.set_value(_TRAJECTORY_KEY, trajectory)
    context = otel_context.set_value(_LLM_CALL_KEY, None, context)
    return otel_context.set_value(_SPAN_KEY, trajectory.root, context)


def span_context(span: Span) -> otel_context.Context:
    """The current context with `span` as the current span of ours."""
    return otel_context.set_value(_LLM_CALL_KEY, None, otel_context.set_value(_SPAN_KEY, span))


def llm_call_context(find: Callable[[], Span | None]) -> otel_context.Context:
    """The current context inside a framework's LLM call, whose span `find` gives once it has started."""
    return otel_context.set_value(_LLM_CALL_KEY, find)
