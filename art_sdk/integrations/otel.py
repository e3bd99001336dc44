"""Other frameworks, through the OpenTelemetry spans that they make: a span processor of ours on the user's providers.

The user's spans are only read: their ids, parents, sampling and exporters stay as they are. Inside a trajectory an
agent or a tool call becomes a span of ours when it starts, and what happens inside it has that span as its parent.
Any other span lets through: what is inside belongs to where the span itself is.

An LLM call is recorded when it ends, and only if no hook of ours has seen it: at the HTTP client or in LangChain a
call is seen more exactly, and most frameworks' calls pass there. So two instrumentations that tell of the same call
make one span, too.

Tried with opentelemetry-sdk 1.45.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import wrapt
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import Span, SpanContext, StatusCode, get_current_span

from ..capture import runs, spans
from ..capture.guard import guarded
from ..capture.spans import LiveTrajectory, Place, attributes_of, start_of
from ..settings import get_settings
from . import dialects, switch
from .dialects import Reading

if TYPE_CHECKING:
    from opentelemetry.context import Context

# These tell of what our own LangChain hook sees better.
_LANGCHAIN = frozenset(
    f"{family}.langchain"
    for family in (
        "openinference.instrumentation",
        "opentelemetry.instrumentation",
        "opentelemetry.instrumentation.genai",
    )
)
_AROUND_OTHERS = frozenset({spans.INVOKE_AGENT, spans.EXECUTE_TOOL})
_CANCELLED = frozenset({"CancelledError", "GeneratorExit", "KeyboardInterrupt"})

_Key = tuple[int, int]


def watch_providers(module: Any) -> None:
    """Read the spans of the global provider and of every one that is made from now on."""
    current = trace._TRACER_PROVIDER  # get_tracer_provider() would make one
    if isinstance(current, TracerProvider):
        install(current)
    wrapt.wrap_function_wrapper(module, "TracerProvider.__init__", _init)


def _init(wrapped: Any, provider: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    guarded(install, provider)


def install(provider: TracerProvider) -> None:
    """Read the spans of this provider. It happens once, however often it is called."""
    if provider in _providers:
        return
    _providers.add(provider)
    spans.add_locator(_processor.here)
    provider.add_span_processor(_processor)


@dataclass(eq=False)
class _Foreign:
    """An open span of the user's. `place` is where what starts inside it belongs.

    `own` is our span of it, where it has one already. `silent` is what we have from elsewhere. `call` is the last LLM
    call of ours that a span inside it turned out to be.
    """

    span: ReadableSpan
    place: Place
    parent: "_Foreign | None" = None
    own: Span | None = None
    call: Span | None = None
    silent: bool = False
    root: bool = False


class ForeignSpans(SpanProcessor):
    """Turns foreign spans into ours. One for all providers: a span may have its parent in another."""

    def __init__(self) -> None:
        self._open: dict[_Key, _Foreign] = {}
        self._told: WeakKeyDictionary[Span, set[str]] = WeakKeyDictionary()
        """Which instrumentations have told of each span of ours: none tells of the same thing twice."""
        self._telling = Lock()

    def on_start(self, span: Span, parent_context: "Context | None" = None) -> None:
        if switch.is_on():
            guarded(self._start, span)

    def on_end(self, span: ReadableSpan) -> None:
        foreign = self._open.pop(_key(span.context), None)
        if foreign is not None and foreign.place.live.open:
            guarded(self._end, foreign, span)

    def here(self) -> Place | None:
        """The place of the user's current span."""
        foreign = self._open.get(_key(get_current_span().get_span_context()))
        return foreign.place if foreign else None

    # Starts

    def _start(self, span: Any) -> None:
        parent = self._open.get(_key(span.parent)) if span.parent else None
        at = self._at(parent)
        if at is None:
            if get_settings().auto:
                self._start_root(span)
            return
        operation = dialects.operation(span)
        silent = _scope(span) in _LANGCHAIN or (at.call and operation in spans.LLM_OPERATIONS)
        foreign = _Foreign(span, at, parent, silent=silent)
        if not silent and operation in _AROUND_OTHERS and (reading := dialects.read(span)):
            twin = self._twin(span, at, reading)
            foreign.silent = twin is not None
            foreign.own = None if twin else _start_own(reading, at, span)
            around = twin or foreign.own
            if around is not None:
                self._told.setdefault(around, set()).add(_scope(span))
                foreign.place = Place(at.live, around)
        self._watch(span, foreign)

    def _twin(self, span: Any, at: Place, reading: Reading) -> Span | None:
        """The open span that is this agent's or tool's already, by another instrumentation or hook: the one around, or
        one beside it that began inside the same."""
        if _is_of(at.span, reading):
            return at.span
        for other in reversed(self._open.copy().values()):
            own = other.own
            if own is None or other.place.live is not at.live or start_of(own) < start_of(at.span):
                continue
            if _is_of(own, reading) and _scope(span) not in self._told[own]:
                return own
        return None

    def _at(self, parent: _Foreign | None) -> Place | None:
        at = switch.here()
        if parent is None or not parent.place.live.open:
            return at
        # A framework may name a parent that isn't the current span. What of ours began inside it is nearer.
        if at is None or at is self.here() or start_of(at.span) <= start_of(parent.place.span):
            return parent.place
        return at

    def _start_root(self, span: Any) -> None:
        reading = None if _scope(span) in _LANGCHAIN else dialects.read(span)
        if reading is None or reading.operation != spans.INVOKE_AGENT:
            return
        live = runs.begin_auto(reading.subject, reading.content.get(spans.INPUT, {}))
        if live is not None:
            self._watch(span, _Foreign(span, Place(live, live.root), root=True))

    def _watch(self, span: Any, foreign: _Foreign) -> None:
        self._open[_key(span.context)] = foreign
        live = foreign.place.live
        if self not in live.at_end:
            live.at_end[self] = partial(self._sweep, live)

    # Ends

    def _end(self, foreign: _Foreign, span: ReadableSpan) -> None:
        reading = None if foreign.silent else dialects.read(span)
        if foreign.root:
            self._end_root(foreign, span, reading)
        elif reading is not None and (own := self._own(foreign, span, reading)):
            _tell(own, foreign.place.live, reading)
            if span.status.status_code is StatusCode.ERROR:
                _fail(own, span)
            own.end(end_time=span.end_time)

    def _own(self, foreign: _Foreign, span: ReadableSpan, reading: Reading) -> Span | None:
        if foreign.own is not None:
            return foreign.own
        live = foreign.place.live
        if not reading.is_call:
            return _start_own(reading, foreign.place, span)
        if (call := self._known(foreign, span, live, reading)) is not None:
            _pass_on(foreign, call)
            return None
        own = _start_own(reading, foreign.place, span)
        own.set_attribute("art.http", False)
        live.calls.append(own)
        self._told[own] = {_scope(span)}
        _pass_on(foreign, own)
        return own

    def _known(self, foreign: _Foreign, span: ReadableSpan, live: LiveTrajectory, reading: Reading) -> Span | None:
        """The span of ours that is this call already. Where neither a span inside it nor a response id says so, it is
        one that began inside it; of several the first, so that of calls side by side each finds one."""
        if foreign.call is not None and not _differ(_models(attributes_of(foreign.call)), _models(reading.attributes)):
            return foreign.call
        with self._telling:
            for call in sorted(live.calls.copy(), key=start_of):
                told = self._told.setdefault(call, set())
                if _scope(span) not in told and _is_same(call, span, reading):
                    told.add(_scope(span))
                    return call
        return None

    def _end_root(self, foreign: _Foreign, span: ReadableSpan, reading: Reading | None) -> None:
        live = foreign.place.live
        content = reading.content if reading else {}
        if spans.INPUT in content:
            live.root.set_attributes(spans.content_attributes(live, {spans.INPUT: content[spans.INPUT]}))
        error = _error(span) if span.status.status_code is StatusCode.ERROR else None
        runs.end_auto(live, content.get(spans.OUTPUT), error)

    def _sweep(self, live: LiveTrajectory) -> None:
        """End what is still open when its trajectory ends: nobody waits for it any more."""
        for key, foreign in self._open.copy().items():
            if foreign.place.live is not live or self._open.pop(key, None) is None or foreign.root or foreign.silent:
                continue
            reading = dialects.read(foreign.span)
            if reading is not None and (own := self._own(foreign, foreign.span, reading)):
                _tell(own, live, reading)
                own.set_attribute(spans.STATUS, "cancelled")
                own.end()


def _start_own(reading: Reading, at: Place, span: ReadableSpan) -> Span:
    attributes = reading.attributes | spans.content_attributes(at.live, _before(reading))
    return spans.start_span(reading.operation, reading.subject, attributes, at.span, start_time=span.start_time)


def _is_of(own: Span, reading: Reading) -> bool:
    """Whether the span is of the same agent or tool. Each instrumentation has its own way with capitals."""
    name: str = getattr(own, "name", "")
    return name.casefold() == f"{reading.operation} {reading.subject}".casefold()


def _pass_on(foreign: _Foreign, call: Span) -> None:
    """Tell the spans around this one, as far as they have none of ours, that the call is known."""
    around = foreign.parent
    while around is not None and around.own is None:
        around.call = call
        around = around.parent


def _before(reading: Reading) -> dict[str, Any]:
    """What is known before it runs."""
    after = (spans.OUTPUT, spans.OUTPUT_MESSAGES, spans.TOOL_RESULT)
    return {key: value for key, value in reading.content.items() if key not in after}


def _tell(own: Span, live: LiveTrajectory, reading: Reading) -> None:
    own.update_name(f"{reading.operation} {reading.subject}")
    own.set_attributes(reading.attributes | spans.content_attributes(live, reading.content))
    if reading.operation == spans.EXECUTE_TOOL:
        _take_request(own, live, reading)


def _take_request(own: Span, live: LiveTrajectory, reading: Reading) -> None:
    """Name the tool call of a model that this is the run of."""
    identity = reading.attributes.get(spans.TOOL_CALL_ID)
    found = spans.take_request(live, reading.subject, reading.content.get(spans.TOOL_ARGUMENTS), identity)
    if found:
        own.set_attribute(spans.TOOL_CALL_ID, found)


def _is_same(call: Span, span: ReadableSpan, reading: Reading) -> bool:
    ours, theirs = attributes_of(call), reading.attributes
    if ours.get(spans.RESPONSE_ID) and theirs.get(spans.RESPONSE_ID):
        return bool(ours[spans.RESPONSE_ID] == theirs[spans.RESPONSE_ID])
    began_inside = start_of(span) <= start_of(call) <= (span.end_time or start_of(call))
    return began_inside and not _differ(_models(ours), _models(theirs))


def _models(attributes: Mapping[str, Any]) -> set[str]:
    found = (attributes.get(spans.REQUEST_MODEL), attributes.get(spans.RESPONSE_MODEL))
    return {str(model).rpartition("/")[2] for model in found if model}


def _differ(ours: set[str], theirs: set[str]) -> bool:
    return bool(ours and theirs) and not ours & theirs


def _fail(own: Span, span: ReadableSpan) -> None:
    spans.fail(own, _error(span))


def _error(span: ReadableSpan) -> BaseException:
    """The exception that ended the span, as far as it says."""
    raised = next((event.attributes or {} for event in reversed(span.events) if event.name == "exception"), {})
    kind = str(raised.get("exception.type") or (span.attributes or {}).get(spans.ERROR_TYPE) or "Error")
    kind = kind.rpartition(".")[2]
    words = str(raised.get("exception.message") or span.status.description or "").removeprefix(f"{kind}: ")
    if kind in _CANCELLED:
        return GeneratorExit(words)
    error: BaseException = type(kind, (Exception,), {})(words)
    return error


def _scope(span: ReadableSpan) -> str:
    return span.instrumentation_scope.name if span.instrumentation_scope else ""


def _key(context: SpanContext | None) -> _Key:
    return (context.trace_id, context.span_id) if context else (0, 0)


_processor = ForeignSpans()
_providers: WeakSet[TracerProvider] = WeakSet()
