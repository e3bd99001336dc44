"""Spans: OpenTelemetry spans with the GenAI conventions, and where in them the program is.

They belong to no provider: the user's OpenTelemetry set-up, its current span too, is only ever read. Each goes to
the journal when it starts and when it ends (`recording.py`).

Messages are no attributes of the span: they are content, written once per trajectory under their
hash, and the span holds the hashes (`art.input.messages`). The store puts them together again.
"""

import logging
import os
import re
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    Status,
    StatusCode,
    format_span_id,
    format_trace_id,
    get_current_span,
)

from ..settings import get_settings
from . import journal
from .content import kept_text, to_content
from .guard import guarded
from .recording import RecordingSpan
from .records import Content

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
MASKED = "art.masked"
CACHED = "art.cached"
RESUMES = "art.resumes"
"""The trajectory whose interrupted graph this one goes on with."""
ATTEMPTS = "art.http.attempts"
USER_TRACE = "art.user.trace"
"""`<trace id>-<span id>` of the span of the user's own tracing that the trajectory began in."""

LISTS = frozenset({INPUT_MESSAGES, OUTPUT_MESSAGES, TOOL_DEFINITIONS})
_PLACE_KEY = otel_context.create_key("art-sdk-place")


@dataclass(eq=False)
class LiveTrajectory:
    """A trajectory while its function runs: what `art.current_trajectory()` returns.

    `id` is all that another process needs to give a reward later.
    """

    id: str
    name: str
    root: Span = field(repr=False)
    open: bool = field(default=True, repr=False)
    """Whether anything may still be written to it: not one that is not captured, nor one that has ended."""
    captured: bool = field(default=True, repr=False)
    """False for one that is only there so that the program finds a trajectory: not sampled, switched off, failed to
    start."""
    rewards: dict[str, float] = field(default_factory=dict, repr=False)
    written: set[str] = field(default_factory=set, repr=False)
    """Hashes of the content already written for it."""
    lists: dict[bytes, str] = field(default_factory=dict, repr=False)
    """Long lists of content already written for it: digest of the items, and the hash of the list."""
    calls: deque[Span] = field(default_factory=lambda: deque(maxlen=256), repr=False)
    """The last LLM calls that hooks of ours recorded: what another framework's spans tell of them is known."""
    asked: list["ToolRequest"] = field(default_factory=list, repr=False)
    """Tool calls that a model has asked for and that no span has taken up yet."""
    said: dict[Any, tuple[str, bool]] = field(default_factory=dict, repr=False)
    """What of a request has been kept: how it stood there, the hash of its content, whether that was masked."""
    at_end: dict[Any, Callable[[], None]] = field(default_factory=dict, repr=False)
    """Called just before it ends, by who asked for it: whoever holds a span of it open, ends it."""
    streams: set[Any] = field(default_factory=set, repr=False)
    """Answers that the program is still reading."""
    when_read: Callable[[], None] | None = field(default=None, repr=False)
    """Called when the last of `streams` has been read."""
    status: str | None = field(default=None, repr=False)
    """How it ends where its function's return doesn't say so: `interrupted`."""
    process: int = field(default_factory=os.getpid, repr=False)


@dataclass(frozen=True)
class ToolRequest:
    """One tool call that a model asked for."""

    id: str
    name: str
    arguments: Any


class Place(NamedTuple):
    """Where the program is: in which trajectory, and the span that what starts here belongs under.

    `call` says that the span is an LLM call that a framework has open: an HTTP request made here is that
    call, and gets no span of its own.
    """

    live: LiveTrajectory
    span: Span
    call: bool = False


def start_root(name: str, attributes: Mapping[str, Any], inputs: Any) -> LiveTrajectory:
    """Start a trajectory: a span in a trace of its own, whatever is current. `inputs` is plain data."""
    identity = os.urandom(16).hex()
    content, was_masked = to_content(inputs, is_plain=True)
    journal.hold(Content(content.hash, content.data, identity))
    found = {OPERATION: INVOKE_AGENT, INPUT: content.hash, **attributes}
    if was_masked:
        found[MASKED] = True
    user = get_current_span().get_span_context()
    if user.is_valid:
        found[USER_TRACE] = f"{format_trace_id(user.trace_id)}-{format_span_id(user.span_id)}"
    span = RecordingSpan(f"{INVOKE_AGENT} {name}", identity, None, found)
    return LiveTrajectory(id=identity, name=name, root=span, written={content.hash})


def lost_root(name: str) -> LiveTrajectory:
    """A trajectory that is not captured: it has an id like any other, and nothing inside it is recorded."""
    trace_id = int.from_bytes(os.urandom(16)) or 1
    root = NonRecordingSpan(SpanContext(trace_id, span_id=int.from_bytes(os.urandom(8)) or 1, is_remote=False))
    return LiveTrajectory(id=format_trace_id(trace_id), name=name, root=root, open=False, captured=False)


def start_span(
    operation: str,
    subject: str,
    attributes: Mapping[str, Any],
    parent: Span,
    *,
    start_time: int | None = None,
    held: bool = False,
) -> RecordingSpan:
    """Start a span named by the conventions (`chat gpt-5`) under `parent`.

    `held`: more is known of it in a moment; its start is written then.
    """
    return RecordingSpan(
        f"{operation} {subject}".strip(),
        trajectory_of(parent),
        span_id(parent),
        {OPERATION: operation, **attributes},
        start_time=start_time,
        held=held,
        aside=operation == INVOKE_AGENT,
    )


def metadata_attributes(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that keep a trajectory's `metadata`."""
    content, was_masked = to_content(dict(metadata))
    return {METADATA: content.data.decode()} | ({MASKED: True} if was_masked else {})


def content_attributes(live: LiveTrajectory, values: Mapping[str, Any]) -> dict[str, Any]:
    """Keep content, once per trajectory, and return the attributes that point to it. The next record takes it along.

    The values of `LISTS` are lists, whose items are content of their own; all others are one. What is known when a
    span starts belongs in its start: a crash then leaves it.
    """
    attributes: dict[str, Any] = {}
    for attribute, value in values.items():
        is_list = attribute in LISTS
        kept = [keep(live, item) for item in (value if is_list else (value,))]
        attributes[attribute] = listed(live, [identity for identity, _ in kept]) if is_list else kept[0][0]
        if any(was_masked for _, was_masked in kept):
            attributes[MASKED] = True
        if attribute == OUTPUT_MESSAGES:
            live.asked.extend(_requests(value))
    return attributes


def tell(span: Span) -> None:
    """Write what is known of a span that is still open: a crash then leaves it."""
    if isinstance(span, RecordingSpan):
        span.tell()


def keep(live: LiveTrajectory, value: Any) -> tuple[str, bool]:
    """Keep one value as content: its hash, and whether something in it was masked."""
    content, was_masked = to_content(value)
    keep_content(live, content)
    return content.hash, was_masked


def keep_content(live: LiveTrajectory, content: Content) -> None:
    """Write content along with the trajectory's next record, unless it has been."""
    if content.hash not in live.written:
        live.written.add(content.hash)
        journal.hold(Content(content.hash, content.data, live.id))


_SHORT = 8
"""A list of so few messages is written out; one hash stands for a longer one."""


def listed(live: LiveTrajectory, hashes: list[str]) -> list[str] | str:
    """What points to a list of content: its items' hashes, or one hash for a long list.

    That one is of the content `{"after": hash of the list that it begins with, "items": hashes of what follows}`, for
    a call begins with what earlier calls of its trajectory said. So what is sent again costs nothing, and an episode
    costs what was said in it.
    """
    if len(hashes) <= _SHORT:
        return hashes
    known, after = 0, None
    said, digests = blake2b(digest_size=16), []
    for index, item in enumerate(hashes):
        said.update(item.encode())
        digests.append(said.digest())
        if (found := live.lists.get(digests[-1])) is not None:
            known, after = index + 1, found
    if after is not None and known == len(hashes):
        return after
    live.lists[digests[-1]], _ = keep(live, {"after": after, "items": hashes[known:]})
    return live.lists[digests[-1]]


def _requests(messages: Any) -> Iterator[ToolRequest]:
    for message in messages:
        for part in message.get("parts", ()):
            if part.get("type") == "tool_call" and part.get("id"):
                yield ToolRequest(str(part["id"]), str(part.get("name")), part.get("arguments"))


def take_request(live: LiveTrajectory, name: str, arguments: Any = None, identity: str | None = None) -> str | None:
    """The id of the tool call that a model asked for and that now runs: by its id, or else by name and arguments.

    Each is taken once, so that two equal calls have two ids.
    """
    for index, request in enumerate(live.asked):
        if request.id == identity if identity else (request.name, request.arguments) == (name, arguments):
            return live.asked.pop(index).id
    return identity


def fail(span: Span, error: BaseException) -> None:
    """Mark the span as failed by `error`, or as cancelled. It still has to be ended."""
    if is_cancel(error):
        span.set_attribute(STATUS, "cancelled")
        return
    words, was_masked = describe(error)
    span.set_attribute(ERROR_TYPE, type(error).__qualname__)
    if was_masked:
        span.set_attribute(MASKED, True)
    span.set_status(Status(StatusCode.ERROR, words))


def note_error(span: Span, attribute: str, error: BaseException) -> None:
    """Write an error's type and words on a span that did not fail by it."""
    words, was_masked = describe(error)
    span.set_attributes({attribute: words, MASKED: True} if was_masked else {attribute: words})


def is_cancel(error: BaseException) -> bool:
    """The caller stopped waiting or listening: nothing went wrong."""
    return isinstance(error, CancelledError | GeneratorExit | KeyboardInterrupt)


def is_interrupt(error: BaseException) -> bool:
    """A LangGraph graph stopped to be resumed: nothing went wrong, and nothing has ended."""
    return type(error).__name__ in ("GraphInterrupt", "NodeInterrupt")


def describe(error: BaseException) -> tuple[str, bool]:
    """The error's type and words, as far as they may be kept, and whether some were masked. The queries and passwords
    of URLs never are kept: keys are found there."""
    try:
        words = str(error)
    except Exception:  # its own `__str__` is broken
        words = "(no message)"
    words, was_masked = kept_text(_URL_SECRETS.sub(_without_secrets, words))
    return f"{type(error).__name__}: {words}", was_masked


_URL_SECRETS = re.compile(r"(\w+://)([^\s/?#'\"]*@)?([^\s?#'\"]*)(\?[^\s'\"]*)?")


def _without_secrets(url: re.Match[str]) -> str:
    scheme, user, rest, query = url.groups()
    return f"{scheme}{'***@' if user else ''}{rest}{'?***' if query else ''}"


def span_id(span: Span) -> str:
    return span.span_id if isinstance(span, RecordingSpan) else format_span_id(span.get_span_context().span_id)


def trajectory_of(span: Span) -> str:
    """The id of the trajectory that a span belongs to."""
    if isinstance(span, RecordingSpan):
        return span.trajectory_id
    return format_trace_id(span.get_span_context().trace_id)


def attributes_of(span: Any) -> Mapping[str, Any]:
    """What is on a span; nothing for one that is not recorded."""
    return getattr(span, "attributes", None) or {}


def start_of(span: Any) -> int:
    """When a span started, in nanoseconds since the epoch. 0 for another process's: it encloses all that is here."""
    return getattr(span, "start_time", 0) or 0


# Where the program is

_locators: list[Callable[[], Place | None]] = []


def add_locator(find: Callable[[], Place | None]) -> None:
    """Register where a framework that keeps a context of its own is asked for the place that it is at."""
    if find not in _locators:
        _locators.append(find)


def held() -> Place | None:
    """The place that the OpenTelemetry context holds."""
    value: Any = otel_context.get_value(_PLACE_KEY)
    return value if value is None or type(value) is Place else value()


def place() -> Place | None:
    """The innermost place of an open trajectory here, by the OpenTelemetry context and by what the frameworks say."""
    best = innermost(held(), None)
    for find in _locators:
        best = innermost(best, guarded(find))
    return best


def innermost(one: Place | None, other: Place | None) -> Place | None:
    """Of two places that both enclose this point, the inner one, whose span started last. None that has ended."""
    if one is None or not one.live.open:
        return other if other is not None and other.live.open else None
    if other is None or not other.live.open:
        return one
    return other if start_of(other.span) > start_of(one.span) else one


def current_trajectory() -> LiveTrajectory | None:
    """The trajectory that this code runs in, None outside one."""
    found = place() or held()
    if found is None:  # a framework may be in one that is not captured; in one that has ended, it only hasn't noticed
        told = filter(None, map(guarded, _locators))
        found = next((at for at in told if not at.live.captured), None)
    return found.live if found is not None else None


class attached:
    """Make `context` current in a block. It may be left in another task or thread than it was entered in, as
    generators do."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: otel_context.Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = otel_context.attach(self._context)

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):
            self._token.var.reset(self._token)


def trajectory_context(live: LiveTrajectory) -> otel_context.Context:
    """The current context with `live` as the current trajectory and its root as the current span."""
    return otel_context.set_value(_PLACE_KEY, Place(live, live.root))


def span_context(live: LiveTrajectory, span: Span) -> otel_context.Context:
    """The current context with `span` as the current span of ours."""
    return otel_context.set_value(_PLACE_KEY, Place(live, span))


def call_context(find: Callable[[], Place | None]) -> otel_context.Context:
    """The current context inside a framework's LLM call, whose place `find` gives once it has started.

    Until it has, and where it finds none, the place around it stays.
    """
    around = place()
    return otel_context.set_value(_PLACE_KEY, lambda: find() or around)


# From thread to thread and process to process


class carried:
    """Make another thread's place (its `place()`) the current one in a block; None: none is current there."""

    __slots__ = ("_attached",)

    def __init__(self, place: Place | None) -> None:
        nothing = place is None and otel_context.get_value(_PLACE_KEY) is None
        self._attached = None if nothing else attached(otel_context.set_value(_PLACE_KEY, place))

    def __enter__(self) -> None:
        if self._attached is not None:
            self._attached.__enter__()

    def __exit__(self, *_: object) -> None:
        if self._attached is not None:
            self._attached.__exit__()


def header(at: Place) -> str:
    """A place as the value of `TRAJECTORY_HEADER`, for another process."""
    return f"{at.live.id}-{span_id(at.span)}"


@contextmanager
def joined(header: str) -> Iterator[LiveTrajectory | None]:
    """Make a place in another process's trajectory current: what is captured here belongs to it.

    A header that is none is logged once and changes nothing: it may come from anywhere.
    """
    live = guarded(remote, header)
    if live is None:
        yield None
        return
    try:
        with attached(trajectory_context(live)):
            yield live
    finally:
        live.open = False


_HEADER = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})")


def remote(header: str) -> LiveTrajectory | None:
    """The trajectory that a header names. None where nothing is captured; raises `ValueError` for no such header."""
    if get_settings().off:
        return None
    found = _HEADER.fullmatch(header)
    if found is None or int(found[1], 16) == 0 or int(found[2], 16) == 0:
        raise ValueError(f"{TRAJECTORY_HEADER} must be <32 hex digits>-<16 hex digits>, got {header[:80]!r}")
    context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True)
    return LiveTrajectory(id=found[1], name="", root=NonRecordingSpan(context))
