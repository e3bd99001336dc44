"""LangChain and LangGraph, unchanged: a callback handler that every run gets by itself.

`register_configure_hook` is LangChain's public way in: it fires on every callback manager, so no
`callbacks=` is needed anywhere. The handler opens spans; it never attaches context, because
LangChain may start several runs before the first makes its call. Which LLM run an HTTP request
belongs to is told by the wrapped methods below, which make a run's span current just while its own
call is being made. Tried with langchain-core 1.8 and langgraph 1.2.

This module is imported in the middle of LangChain's own imports, so it may import from there only what
has none of its own; the rest is imported where it is used.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import wrapt
from langchain_core.callbacks.base import BaseCallbackHandler
from opentelemetry.trace import Span

from ..capture import spans
from ..capture.guard import guarded
from ..capture.spans import LiveTrajectory, Place
from .messages import Message, from_openai, text
from .switch import here

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import LLMResult

# LangGraph steers with exceptions: these ended no run with an error.
_CONTROL_FLOW = frozenset({"GraphInterrupt", "NodeInterrupt", "GraphBubbleUp", "ParentCommand"})


@dataclass
class _Run:
    """An open run. `own` is False for a run that has no span of its own and lends its parent's.

    `task` is LangGraph's name of the node execution that it is part of.
    """

    span: Span
    live: LiveTrajectory
    own: bool
    task: str | None = None


class SpanHandler(BaseCallbackHandler):
    """Turns LangChain's run callbacks into spans."""

    run_inline = True
    raise_error = False

    def __init__(self) -> None:
        self._runs: dict[UUID, _Run] = {}

    # Starts

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: "list[list[BaseMessage]]",
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **extra: Any,
    ) -> None:
        model = _model_name(serialized, extra)
        self._start(
            run_id,
            parent_run_id,
            spans.CHAT,
            model,
            {spans.REQUEST_MODEL: model},
            lambda: {spans.INPUT_MESSAGES: [m for batch in messages for m in _messages(batch)]},
        )

    def on_llm_start(
        self, serialized: Any, prompts: list[str], *, run_id: UUID, parent_run_id: UUID | None = None, **extra: Any
    ) -> None:
        model = _model_name(serialized, extra)
        self._start(
            run_id,
            parent_run_id,
            spans.TEXT_COMPLETION,
            model,
            {spans.REQUEST_MODEL: model},
            lambda: {spans.INPUT_MESSAGES: [_user(prompt) for prompt in prompts]},
        )

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
        attributes = {spans.TOOL_NAME: name}
        if call_id := extra.get("tool_call_id"):
            attributes[spans.TOOL_CALL_ID] = call_id
        self._start(
            run_id,
            parent_run_id,
            spans.EXECUTE_TOOL,
            name,
            attributes,
            lambda: {spans.TOOL_ARGUMENTS: input_str if inputs is None else inputs},
        )

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
        node, task = ((metadata or {}).get(f"langgraph_{key}") for key in ("node", "checkpoint_ns"))
        parent = self._runs.get(parent_run_id) if parent_run_id else None
        if node is not None and name == node and (task is None or parent is None or parent.task != task):
            self._start(
                run_id, parent_run_id, spans.INVOKE_AGENT, name, {spans.AGENT_NAME: name, "art.graph.node": name}
            )
        else:  # a sequence, a lambda, a prompt, the node's own function: only its children are of interest
            self._lend(run_id, parent_run_id)
        if run := self._runs.get(run_id):
            run.task = task

    # Ends

    def on_llm_end(self, response: "LLMResult", *, run_id: UUID, **_: Any) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        if not _has(run.span, spans.OUTPUT_MESSAGES):
            # No HTTP request was seen: a cache hit or a model of another kind.
            self._set_outputs(run, response)
            run.span.set_attribute("art.http", False)
        run.span.end()

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        from langchain_core.messages import ToolMessage

        if isinstance(output, ToolMessage):
            if output.tool_call_id:
                run.span.set_attribute(spans.TOOL_CALL_ID, output.tool_call_id)
            if output.status == "error":
                run.span.set_attribute(spans.ERROR_TYPE, "tool_error")
            output = output.content
        run.span.set_attributes(spans.content_attributes(run.live, {spans.TOOL_RESULT: output}))
        run.span.end()

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id, None)

    def on_llm_error(
        self, error: BaseException, *, run_id: UUID, response: "LLMResult | None" = None, **_: Any
    ) -> None:
        run = self._runs.get(run_id)
        if run is not None and response is not None and not _has(run.span, spans.OUTPUT_MESSAGES):
            # LangChain ends a run that was left early before it lets go of the HTTP stream.
            self._set_outputs(run, response)
            run.span.set_attribute("art.stream.end", "closed" if spans.is_cancel(error) else type(error).__name__)
        self._close(run_id, error)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id, error)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id, error)

    # The map of open runs

    def _set_outputs(self, run: _Run, response: "LLMResult") -> None:
        outputs = [_output(generation) for batch in response.generations for generation in batch]
        run.span.set_attributes(spans.content_attributes(run.live, {spans.OUTPUT_MESSAGES: outputs}))

    def place_of(self, run_id: UUID, *, call: bool = False) -> Place | None:
        run = self._runs.get(run_id)
        return Place(run.live, run.span, call) if run else None

    def _start(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        operation: str,
        subject: str,
        attributes: dict[str, Any],
        content: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        at = self._parent(parent_run_id)
        if at is None:
            return
        if content is not None:
            attributes |= guarded(lambda: spans.content_attributes(at.live, content())) or {}
        self._runs[run_id] = _Run(spans.start_span(operation, subject, attributes, at.span), at.live, own=True)

    def _lend(self, run_id: UUID, parent_run_id: UUID | None) -> None:
        if at := self._parent(parent_run_id):
            self._runs[run_id] = _Run(at.span, at.live, own=False)

    def _parent(self, parent_run_id: UUID | None) -> Place | None:
        at = here()
        run = self._runs.get(parent_run_id) if parent_run_id else None
        if run is not None and at is not None and run.live is at.live:
            return Place(run.live, run.span)
        return at

    def _close(self, run_id: UUID, error: BaseException | None) -> None:
        run = self._runs.pop(run_id, None)
        if run is None or not run.own:
            return
        if error is not None:
            if type(error).__name__ in _CONTROL_FLOW:
                run.span.set_attribute(spans.STATUS, "interrupted")
            else:
                spans.fail(run.span, error)
        run.span.end()


class _Hook:
    """LangChain only ever calls `get()` on what it takes for a context variable: this one is set in every thread."""

    def __init__(self, handler: SpanHandler) -> None:
        self._handler = handler

    def get(self) -> SpanHandler | None:
        return self._handler if here() is not None else None


_handler = SpanHandler()


def register(context: Any) -> None:
    """Give the handler to every run. `langchain_core.tracers.context` is imported no later than with the first."""
    spans.add_locator(_current_run)
    context.register_configure_hook(_Hook(_handler), inheritable=True)


def _current_run() -> Place | None:
    """LangChain keeps the run that code runs in, a graph's node for example, in a context variable of its own."""
    from langchain_core.runnables.config import var_child_runnable_config

    manager = (var_child_runnable_config.get() or {}).get("callbacks")
    parent_run_id = getattr(manager, "parent_run_id", None)
    return _handler.place_of(parent_run_id) if parent_run_id is not None else None


def wrap_chat_models(module: Any) -> None:
    """Wrap the chat models' ways to their API."""
    _wrap(module, "BaseChatModel", "_generate_with_cache", _generate)
    _wrap(module, "BaseChatModel", "_agenerate_with_cache", _agenerate)
    _wrap(module, "BaseChatModel", "stream", _stream)
    _wrap(module, "BaseChatModel", "astream", _astream)
    _wrap(module, "BaseChatModel", "_iter_v2_events", _iter_events)
    _wrap(module, "BaseChatModel", "_aiter_v2_events", _aiter_events)


def wrap_text_models(module: Any) -> None:
    """Wrap the text models' ways to their API."""
    _wrap(module, "BaseLLM", "_generate_helper", _generate)
    _wrap(module, "BaseLLM", "_agenerate_helper", _agenerate)
    _wrap(module, "BaseLLM", "stream", _stream)
    _wrap(module, "BaseLLM", "astream", _astream)


def _wrap(module: Any, model: str, method: str, wrapper: Callable[..., Any]) -> None:
    if hasattr(getattr(module, model), method):
        wrapt.wrap_function_wrapper(module, f"{model}.{method}", wrapper)


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


def _with_run_id(
    input: Any, config: Any = None, *args: Any, **kwargs: Any
) -> tuple[UUID, tuple[Any, ...], dict[str, Any]]:
    from langchain_core.runnables.config import ensure_config

    config = ensure_config(config)
    run_id = config.get("run_id") or uuid4()
    return run_id, (input, {**config, "run_id": run_id}, *args), kwargs


def _stream(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    chosen = guarded(_with_run_id, *args, **kwargs) if here() else None
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
    chosen = guarded(_with_run_id, *args, **kwargs) if here() else None
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


def _user(prompt: str) -> Message:
    return {"role": "user", "parts": [text(prompt)]}


def _output(generation: Any) -> Message:
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration

    if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
        return _messages([generation.message])[0]
    return {"role": "assistant", "parts": [text(generation.text)]}


def _has(span: Span, attribute: str) -> bool:
    return attribute in (getattr(span, "attributes", None) or {})
