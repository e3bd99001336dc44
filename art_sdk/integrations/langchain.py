"""LangChain and LangGraph, unchanged: a callback handler that every run gets by itself.

`register_configure_hook` is LangChain's public way in: it fires on every callback manager, so no
`callbacks=` is needed anywhere. The handler opens spans; it never attaches context, because
LangChain may start several runs before the first makes its call. Where the program is, it learns
from the run that LangChain says is the parent, and the rest of capture from the run that LangChain
keeps in its own context (`_current_run`). Which LLM run an HTTP request belongs to is told by the
wrapped methods below, which make a run's place current just while its own call is being made.
Tried with langchain-core 1.0 and 1.8, langgraph 1.0 and 1.2.

This module is imported in the middle of LangChain's own imports, so it may import from there only what
has none of its own; the rest is imported where it is used.
"""

import functools
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import wrapt
from langchain_core.callbacks.base import BaseCallbackHandler
from opentelemetry.trace import Span

from ..capture import runs, spans
from ..capture.guard import count_error, guarded
from ..capture.spans import LiveTrajectory, Place
from ..capture.tools import start_tool
from ..settings import get_settings
from . import switch, wire
from .messages import Message, from_openai, text, user
from .switch import here

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

# LangGraph steers with exceptions: these ended no run with an error.
_CONTROL_FLOW = frozenset({"GraphBubbleUp", "ParentCommand"})
_REMEMBERED = 10_000
"""Conversations that wait for their resume; the oldest is forgotten first."""


@dataclass(slots=True)
class _Run:
    """An open run, at its place. `own` is False for a run that has no span of its own and lends its parent's.

    `task` is LangGraph's name of the node execution that it is part of, `thread` of the conversation. `root` is
    True for one that is a trajectory of its own, in zero-code mode.
    """

    place: Place
    own: bool
    task: str | None = None
    thread: str | None = None
    root: bool = False
    messages: Callable[[], list[Message]] | None = None
    """What a model was given, for a call that no HTTP request tells it of."""

    @property
    def live(self) -> LiveTrajectory:
        return self.place.live

    @property
    def span(self) -> Span:
        return self.place.span


def _counted(callback: Callable[..., None]) -> Callable[..., None]:
    """A fault of a callback is counted with the others, not only a warning of LangChain's."""

    name = callback.__qualname__

    @functools.wraps(callback)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            callback(*args, **kwargs)
        except Exception as error:
            count_error(name, error)

    return run


class SpanHandler(BaseCallbackHandler):
    """Turns LangChain's run callbacks into spans."""

    run_inline = True
    raise_error = False

    def __init__(self) -> None:
        self._runs: dict[UUID, _Run] = {}
        self._interrupted: OrderedDict[str, str] = OrderedDict()  # conversation: trajectory

    # Starts

    @_counted
    def on_chat_model_start(
        self,
        serialized: Any,
        messages: "list[list[BaseMessage]]",
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **extra: Any,
    ) -> None:
        self._start_call(
            run_id,
            parent_run_id,
            spans.CHAT,
            _model_name(serialized, extra),
            extra,
            lambda: [m for batch in messages for m in _messages(batch)],
        )

    @_counted
    def on_llm_start(
        self, serialized: Any, prompts: list[str], *, run_id: UUID, parent_run_id: UUID | None = None, **extra: Any
    ) -> None:
        model = _model_name(serialized, extra)
        self._start_call(
            run_id, parent_run_id, spans.TEXT_COMPLETION, model, extra, lambda: [user(prompt) for prompt in prompts]
        )

    @_counted
    def on_tool_start(
        self,
        serialized: Any,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        inputs: Any = None,
        **extra: Any,
    ) -> None:
        name = extra.get("name") or (serialized or {}).get("name") or "tool"
        arguments = input_str if inputs is None else inputs
        if (found := self._place(run_id, parent_run_id, f"{spans.EXECUTE_TOOL} {name}", arguments)) is not None:
            at, root = found
            span = start_tool(at, name, arguments, extra.get("tool_call_id"))
            self._add(run_id, _Run(Place(at.live, span), own=True, root=root))

    @_counted
    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> None:
        name = extra.get("name") or ""
        found = self._place(run_id, parent_run_id, name, inputs)
        if found is None:
            return
        at, root = found
        told = metadata or {}
        node, task, thread = told.get("langgraph_node"), told.get("langgraph_checkpoint_ns"), told.get("thread_id")
        parent = self._runs.get(parent_run_id) if parent_run_id else None
        if node is not None and name == node and (task is None or parent is None or parent.task != task):
            attributes = {spans.AGENT_NAME: name, "art.graph.node": name}
            span = spans.start_span(spans.INVOKE_AGENT, name, attributes, at.span)
            self._add(run_id, _Run(Place(at.live, span), own=True, task=task, thread=thread, root=root))
        else:  # a sequence, a lambda, a prompt, the node's own function: only its children are of interest
            self._add(run_id, _Run(at, own=False, task=task, thread=thread, root=root))
        if thread is not None and node is None:
            self._resume(at.live, thread)

    # Ends

    @_counted
    def on_llm_end(self, response: "LLMResult", *, run_id: UUID, **_: Any) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        guarded(self._set_inputs, run)
        if not _has(run.span, spans.OUTPUT_MESSAGES):
            # No HTTP request was seen: a cache hit or a model of another kind.
            guarded(self._set_outputs, run, response)
            run.span.set_attribute("art.http", False)
        run.span.end()
        if run.root:
            runs.end_auto(run.live, [_output(one) for batch in response.generations for one in batch])

    @_counted
    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        from langchain_core.messages import ToolMessage

        if isinstance(output, ToolMessage):
            if output.tool_call_id and not _has(run.span, spans.TOOL_CALL_ID):
                spans.take_request(run.live, output.name or "", identity=output.tool_call_id)
                run.span.set_attribute(spans.TOOL_CALL_ID, output.tool_call_id)
            if output.status == "error":
                run.span.set_attribute(spans.ERROR_TYPE, "tool_error")
            output = output.content
        run.span.set_attributes(guarded(spans.content_attributes, run.live, {spans.TOOL_RESULT: output}) or {})
        run.span.end()
        if run.root:
            runs.end_auto(run.live, output)

    @_counted
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id, None, outputs)

    @_counted
    def on_llm_error(
        self, error: BaseException, *, run_id: UUID, response: "LLMResult | None" = None, **_: Any
    ) -> None:
        run = self._runs.get(run_id)
        if run is not None and response is not None and not _has(run.span, spans.OUTPUT_MESSAGES):
            # LangChain ends a run that was left early before it lets go of the HTTP stream.
            guarded(self._set_outputs, run, response)
            run.span.set_attribute("art.stream.end", "closed" if spans.is_cancel(error) else type(error).__name__)
        self._close(run_id, error)

    @_counted
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id, error)

    @_counted
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        run = self._runs.get(run_id)
        if run is not None and spans.is_interrupt(error):
            self._interrupt(run)
        self._close(run_id, error)

    # Interrupts

    def graph_interrupted(self, run_id: UUID) -> None:
        """The graph of this run stopped to be resumed, and will return as if it had ended."""
        if (run := self._runs.get(run_id)) is not None:
            self._interrupt(run)

    def _interrupt(self, run: _Run) -> None:
        run.live.status = "interrupted"
        if run.thread is not None:
            self._interrupted[run.thread] = run.live.id
            while len(self._interrupted) > _REMEMBERED:
                self._interrupted.popitem(last=False)

    def _resume(self, live: LiveTrajectory, thread: str) -> None:
        """A graph goes on with a conversation. Whichever trajectory waited for that is noted."""
        waiting = self._interrupted.pop(thread, None)
        if waiting is None:
            return
        if waiting != live.id:
            live.root.set_attribute(spans.RESUMES, waiting)
        elif live.id not in self._interrupted.values():
            live.status = None

    # The map of open runs

    def _set_inputs(self, run: _Run) -> None:
        if run.messages is not None and not _has(run.span, spans.INPUT_MESSAGES):
            run.span.set_attributes(spans.content_attributes(run.live, {spans.INPUT_MESSAGES: run.messages()}))

    def _set_outputs(self, run: _Run, response: "LLMResult") -> None:
        answers = [one for batch in response.generations for one in batch]
        run.span.set_attributes(
            spans.content_attributes(run.live, {spans.OUTPUT_MESSAGES: [_output(one) for one in answers]})
        )
        if answers:
            run.span.set_attributes(_answer_attributes(getattr(answers[0], "message", None)))

    def busy(self) -> bool:
        return bool(self._runs)

    def place_of(self, run_id: UUID, *, call: bool = False) -> Place | None:
        run = self._runs.get(run_id)
        if run is None:
            return None
        return Place(run.live, run.span, call=True) if call else run.place

    def _start_call(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        operation: str,
        model: str,
        extra: Mapping[str, Any],
        messages: Callable[[], list[Message]],
    ) -> None:
        found = self._place(run_id, parent_run_id, f"{operation} {model}".strip(), messages)
        if found is None:
            return
        at, root = found
        attributes = {spans.REQUEST_MODEL: model} | wire.parameters((extra.get("invocation_params") or {}).get)
        # The messages are read off the request that the model sends; here only where it has sent none.
        span = spans.start_span(operation, model, attributes, at.span, held=True)
        at.live.calls.append(span)
        self._add(run_id, _Run(Place(at.live, span), own=True, root=root, messages=messages))

    def _place(self, run_id: UUID, parent_run_id: UUID | None, name: str, inputs: Any) -> tuple[Place, bool] | None:
        """Where a run belongs, and whether it is a trajectory of its own, in zero-code mode. None: it is not captured.

        A trajectory that was not sampled is known by its runs nevertheless: else what they call would be a
        trajectory of its own.
        """
        if not switch.is_on():
            return None
        parent = self.place_of(parent_run_id) if parent_run_id else None
        at = spans.innermost(spans.held(), parent) if parent else here()
        if at is not None:
            return at, False
        if parent_run_id is None:
            if (live := runs.begin_auto(name, guarded(inputs) if callable(inputs) else inputs)) is not None:
                return Place(live, live.root), True
            if guarded(_is_auto):
                lost = spans.lost_root(name)
                self._runs[run_id] = _Run(Place(lost, lost.root), own=False)
        elif parent is not None and not parent.live.captured:
            self._runs[run_id] = _Run(parent, own=False)
        return None

    def _add(self, run_id: UUID, run: _Run) -> None:
        self._runs[run_id] = run
        if self not in (at_end := run.live.at_end):
            at_end[self] = functools.partial(self._sweep, run.live)

    def _sweep(self, live: LiveTrajectory) -> None:
        """End what is still open when the trajectory ends: a run that was cancelled gets no callback."""
        # Other threads start and end runs meanwhile, of this trajectory too: a copy, and whoever takes a run ends it.
        for run_id, run in self._runs.copy().items():
            if run.live is live and self._runs.pop(run_id, None) is not None and run.own:
                guarded(self._set_inputs, run)
                run.span.set_attribute(spans.STATUS, "cancelled")
                run.span.end()

    def _close(self, run_id: UUID, error: BaseException | None, outputs: Any = None) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        waits = error is not None and spans.is_interrupt(error)
        steered = waits or type(error).__name__ in _CONTROL_FLOW
        if run.own:
            guarded(self._set_inputs, run)
            if waits:
                run.span.set_attribute(spans.STATUS, "interrupted")
            elif error is not None and not steered:
                spans.fail(run.span, error)
            run.span.end()
        if run.root:
            runs.end_auto(run.live, outputs, None if steered else error)


class _Hook:
    """LangChain only ever calls `get()` on what it takes for a context variable: this one is set in every thread."""

    def get(self) -> SpanHandler | None:
        return _handler if _is_watching() else None


def _is_watching() -> bool:
    """Whether runs that start here may be captured. Asked for every run that LangChain starts anywhere."""
    return switch.is_on() and (_handler.busy() or here() is not None or bool(guarded(_is_auto)))


def _is_auto() -> bool:
    return get_settings().auto


_handler = SpanHandler()


def register(context: Any) -> None:
    """Give the handler to every run. `langchain_core.tracers.context` is imported no later than with the first."""
    spans.add_locator(_current_run)
    context.register_configure_hook(_Hook(), inheritable=True)


def _current_run() -> Place | None:
    """LangChain keeps the run that code runs in, a graph's node for example, in a context variable of its own."""
    config = sys.modules.get("langchain_core.runnables.config")
    if (variable := getattr(config, "var_child_runnable_config", None)) is None:
        return None
    parent_run_id = getattr((variable.get() or {}).get("callbacks"), "parent_run_id", None)
    return _handler.place_of(parent_run_id) if parent_run_id is not None else None


def wrap_chat_models(module: Any) -> None:
    """Wrap the chat models' ways to their API."""
    _wrap(module, "BaseChatModel", "_generate_with_cache", _generate)
    _wrap(module, "BaseChatModel", "_agenerate_with_cache", _agenerate)
    _wrap(module, "BaseChatModel", "stream", _stream)
    _wrap(module, "BaseChatModel", "astream", _astream)
    _wrap(module, "BaseChatModel", "_convert_cached_generations", _from_cache)
    _wrap(module, "BaseChatModel", "_iter_v2_events", _iter_events)
    _wrap(module, "BaseChatModel", "_aiter_v2_events", _aiter_events)


def wrap_text_models(module: Any) -> None:
    """Wrap the text models' ways to their API."""
    _wrap(module, "BaseLLM", "_generate_helper", _generate)
    _wrap(module, "BaseLLM", "_agenerate_helper", _agenerate)
    _wrap(module, "BaseLLM", "stream", _stream)
    _wrap(module, "BaseLLM", "astream", _astream)
    for lookup, wrapper in (("get_prompts", _prompts), ("aget_prompts", _aprompts)):
        if hasattr(module, lookup):
            wrapt.wrap_function_wrapper(module, lookup, wrapper)


def wrap_graphs(module: Any) -> None:
    """Wrap the end of a graph's loop: a breakpoint (`interrupt_before`) stops it outside any node, where no callback
    tells of it."""
    _wrap(module, "SyncPregelLoop", "__exit__", _loop_exit)
    _wrap(module, "AsyncPregelLoop", "__aexit__", _loop_exit)


def _loop_exit(wrapped: Callable[..., Any], loop: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    guarded(_note_interrupt, loop, *args)
    return wrapped(*args, **kwargs)


def _note_interrupt(loop: Any, kind: Any, error: BaseException | None, traceback: Any) -> None:
    if loop.manager is not None and error is not None and spans.is_interrupt(error):
        _handler.graph_interrupted(loop.manager.run_id)


def _wrap(module: Any, owner: str, method: str, wrapper: Callable[..., Any]) -> None:
    if hasattr(getattr(module, owner, None), method):
        wrapt.wrap_function_wrapper(module, f"{owner}.{method}", wrapper)


def _run_place(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Place | None:
    manager = kwargs.get("run_manager")
    if manager is None and len(args) == 3 and args[2]:  # a text model's helper: one request, under the first run
        manager = args[2][0]
    return _handler.place_of(manager.run_id, call=True) if manager is not None else None


def _generate(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    place = guarded(_run_place, args, kwargs)
    if place is None:
        return wrapped(*args, **kwargs)
    with spans.attached(spans.call_context(lambda: place)):
        return wrapped(*args, **kwargs)


async def _agenerate(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    place = guarded(_run_place, args, kwargs)
    if place is None:
        return await wrapped(*args, **kwargs)
    with spans.attached(spans.call_context(lambda: place)):
        return await wrapped(*args, **kwargs)


def _from_cache(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Called just where a cached answer takes the place of a call."""
    at = here()
    if at is not None and at.call:
        at.span.set_attribute(spans.CACHED, True)
    return wrapped(*args, **kwargs)


def _prompts(wrapped: Callable[..., Any], _: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    found = wrapped(*args, **kwargs)
    guarded(_texts_from_cache, found[0], *args, **kwargs)
    return found


async def _aprompts(wrapped: Callable[..., Any], _: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    found = await wrapped(*args, **kwargs)
    guarded(_texts_from_cache, found[0], *args, **kwargs)
    return found


def _texts_from_cache(cached: Mapping[int, Any], params: Mapping[str, Any], prompts: Sequence[str], *_: Any) -> None:
    """A text model's cached answer is no run of LangChain's: here is where it is known."""
    at = here()
    if at is None:
        return
    model = str(params.get("model") or params.get("model_name") or "")
    for index, generations in cached.items():
        content = {
            spans.INPUT_MESSAGES: [user(prompts[index])],
            spans.OUTPUT_MESSAGES: [_output(generation) for generation in generations],
        }
        attributes = {spans.REQUEST_MODEL: model, spans.CACHED: True, "art.http": False}
        attributes |= wire.parameters(params.get) | spans.content_attributes(at.live, content)
        span = spans.start_span(spans.TEXT_COMPLETION, model, attributes, at.span)
        at.live.calls.append(span)
        span.end()


def _with_run_id(
    input: Any, config: Any = None, *args: Any, **kwargs: Any
) -> tuple[UUID, tuple[Any, ...], dict[str, Any]]:
    from langchain_core.runnables.config import ensure_config

    config = ensure_config(config)
    run_id = config.get("run_id") or uuid4()
    return run_id, (input, {**config, "run_id": run_id}, *args), kwargs


def _stream(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    chosen = guarded(_with_run_id, *args, **kwargs) if _is_watching() else None
    if chosen is None:
        return wrapped(*args, **kwargs)  # type: ignore[no-any-return]
    run_id, args, kwargs = chosen
    return _drive(wrapped(*args, **kwargs), run_id)


def _drive(chunks: Iterator[Any], run_id: UUID) -> Iterator[Any]:
    with closing(chunks):  # type: ignore[type-var]
        while True:
            # The run starts inside the first next(): until then only its id is known.
            with spans.attached(spans.call_context(lambda: _handler.place_of(run_id, call=True))):
                try:
                    chunk = next(chunks)
                except StopIteration:
                    return
            yield chunk


def _astream(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
    chosen = guarded(_with_run_id, *args, **kwargs) if _is_watching() else None
    if chosen is None:
        return wrapped(*args, **kwargs)  # type: ignore[no-any-return]
    run_id, args, kwargs = chosen
    return _adrive(wrapped(*args, **kwargs), run_id)


async def _adrive(chunks: AsyncIterator[Any], run_id: UUID) -> AsyncIterator[Any]:
    async with aclosing(chunks):  # type: ignore[type-var]
        while True:
            with spans.attached(spans.call_context(lambda: _handler.place_of(run_id, call=True))):
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
            yield chunk


def _iter_events(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    return _drive(wrapped(*args, **kwargs), kwargs["run_manager"].run_id)


def _aiter_events(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
    return _adrive(wrapped(*args, **kwargs), kwargs["run_manager"].run_id)


def _model_name(serialized: Any, extra: Mapping[str, Any]) -> str:
    parameters = extra.get("invocation_params") or {}
    metadata = extra.get("metadata") or {}
    return str(parameters.get("model") or parameters.get("model_name") or metadata.get("ls_model_name") or "")


def _messages(messages: "Sequence[BaseMessage]") -> list[Message]:
    from langchain_core.messages import convert_to_openai_messages

    return [from_openai(message) for message in convert_to_openai_messages(list(messages))]


def _output(generation: Any) -> Message:
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration

    if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
        return _messages([generation.message])[0]
    return {"role": "assistant", "parts": [text(generation.text)]}


def _answer_attributes(message: Any) -> dict[str, Any]:
    """What LangChain's own result says of the call."""
    usage = getattr(message, "usage_metadata", None) or {}
    said = getattr(message, "response_metadata", None) or {}
    reason = said.get("finish_reason") or said.get("stop_reason") or said.get("done_reason")
    found = {
        spans.RESPONSE_ID: said.get("id") or said.get("message_id"),
        spans.RESPONSE_MODEL: said.get("model_name") or said.get("model"),
        spans.FINISH_REASONS: [reason] if reason else None,
        spans.INPUT_TOKENS: usage.get("input_tokens"),
        spans.OUTPUT_TOKENS: usage.get("output_tokens"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _has(span: Span, attribute: str) -> bool:
    return attribute in spans.attributes_of(span)
