"""LangChain and LangGraph, unchanged: a callback handler that every run gets by itself.

`register_configure_hook` is LangChain's public way in: it fires on every callback manager, so no
`callbacks=` is needed anywhere. The handler opens spans; it never attaches context, because
LangChain may start several runs before the first makes its call. Which LLM run an HTTP request
belongs to is told by the wrapped methods below, which make a run's span current just while its own
call is being made. Tried with langchain-core 1.8 and langgraph 1.2.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import wrapt
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import chat_models
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables.config import ensure_config
from langchain_core.tracers.context import register_configure_hook
from opentelemetry.trace import Span

from ..capture import spans
from ..capture.spans import LiveTrajectory
from .messages import Message, from_openai, text
from .switch import guarded, is_on

# LangGraph steers with exceptions: these ended no run with an error.
_CONTROL_FLOW = frozenset({"GraphInterrupt", "NodeInterrupt", "GraphBubbleUp", "ParentCommand"})


@dataclass
class _Run:
    """An open run. `own` is False for a run that has no span of its own and lends its parent's."""

    span: Span
    live: LiveTrajectory
    own: bool


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
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **extra: Any,
    ) -> None:
        model = _model_name(serialized, extra)
        run = self._start(run_id, parent_run_id, spans.CHAT, model, {spans.REQUEST_MODEL: model})
        if run is not None:
            spans.set_contents(
                run.span, run.live, spans.INPUT_MESSAGES, [m for batch in messages for m in _messages(batch)]
            )

    def on_llm_start(
        self, serialized: Any, prompts: list[str], *, run_id: UUID, parent_run_id: UUID | None = None, **extra: Any
    ) -> None:
        model = _model_name(serialized, extra)
        run = self._start(run_id, parent_run_id, spans.TEXT_COMPLETION, model, {spans.REQUEST_MODEL: model})
        if run is not None:
            inputs: list[Message] = [{"role": "user", "parts": [text(prompt)]} for prompt in prompts]
            spans.set_contents(run.span, run.live, spans.INPUT_MESSAGES, inputs)

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
        run = self._start(run_id, parent_run_id, spans.EXECUTE_TOOL, name, attributes)
        if run is not None:
            spans.set_content(run.span, run.live, spans.TOOL_ARGUMENTS, input_str if inputs is None else inputs)

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
        node = (metadata or {}).get("langgraph_node")
        if node is not None and name == node:
            self._start(
                run_id, parent_run_id, spans.INVOKE_AGENT, name, {spans.AGENT_NAME: name, "art.graph.node": name}
            )
        else:  # a sequence, a lambda, a prompt: only its children are of interest
            self._lend(run_id, parent_run_id)

    # Ends

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        if not _has(
            run.span, spans.OUTPUT_MESSAGES
        ):  # no HTTP request was seen: a cache hit or a model of another kind
            outputs = [_output(generation) for batch in response.generations for generation in batch]
            spans.set_contents(run.span, run.live, spans.OUTPUT_MESSAGES, outputs)
            run.span.set_attribute("art.http", False)
        run.span.end()

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        if isinstance(output, ToolMessage):
            if output.tool_call_id:
                run.span.set_attribute(spans.TOOL_CALL_ID, output.tool_call_id)
            if output.status == "error":
                run.span.set_attribute(spans.ERROR_TYPE, "tool_error")
            output = output.content
        spans.set_content(run.span, run.live, spans.TOOL_RESULT, output)
        run.span.end()

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id, None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id, error)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id, error)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id, error)

    # The map of open runs

    def span_of(self, run_id: UUID) -> Span | None:
        run = self._runs.get(run_id)
        return run.span if run else None

    def _start(
        self, run_id: UUID, parent_run_id: UUID | None, operation: str, subject: str, attributes: dict[str, Any]
    ) -> _Run | None:
        live = spans.current_trajectory()
        if live is None or not is_on():
            return None
        span = spans.start_span(operation, subject, attributes, parent=self._parent(parent_run_id, live))
        run = self._runs[run_id] = _Run(span, live, own=True)
        return run

    def _lend(self, run_id: UUID, parent_run_id: UUID | None) -> None:
        live = spans.current_trajectory()
        if live is not None and is_on():
            self._runs[run_id] = _Run(self._parent(parent_run_id, live), live, own=False)

    def _parent(self, parent_run_id: UUID | None, live: LiveTrajectory) -> Span:
        run = self._runs.get(parent_run_id) if parent_run_id else None
        if run is not None and run.live is live:
            return run.span
        return spans.current_span() or live.root

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
        return self._handler if is_on() and spans.current_trajectory() is not None else None


_handler = SpanHandler()


def install(module: Any) -> None:
    """Register the handler and wrap the chat models' ways to their API."""
    register_configure_hook(_Hook(_handler), inheritable=True)  # type: ignore[arg-type]
    for name, wrapper in {
        "_generate_with_cache": _generate,
        "_agenerate_with_cache": _agenerate,
        "stream": _stream,
        "astream": _astream,
    }.items():
        if hasattr(chat_models.BaseChatModel, name):
            wrapt.wrap_function_wrapper(chat_models, f"BaseChatModel.{name}", wrapper)


def _run_span(kwargs: Mapping[str, Any]) -> Span | None:
    manager = kwargs.get("run_manager")
    return _handler.span_of(manager.run_id) if manager is not None else None


def _generate(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    span = guarded(_run_span, kwargs)
    if span is None:
        return wrapped(*args, **kwargs)
    with spans.attached(spans.llm_call_context(lambda: span)):
        return wrapped(*args, **kwargs)


async def _agenerate(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    span = guarded(_run_span, kwargs)
    if span is None:
        return await wrapped(*args, **kwargs)
    with spans.attached(spans.llm_call_context(lambda: span)):
        return await wrapped(*args, **kwargs)


def _with_run_id(
    input: Any, config: Any = None, *args: Any, **kwargs: Any
) -> tuple[UUID, tuple[Any, ...], dict[str, Any]]:
    config = ensure_config(config)
    run_id = config.get("run_id") or uuid4()
    return run_id, (input, {**config, "run_id": run_id}, *args), kwargs


def _stream(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    chosen = guarded(_with_run_id, *args, **kwargs) if is_on() and spans.current_trajectory() else None
    if chosen is None:
        return wrapped(*args, **kwargs)  # type: ignore[no-any-return]
    run_id, args, kwargs = chosen
    return _drive(wrapped(*args, **kwargs), run_id)


def _drive(chunks: Iterator[Any], run_id: UUID) -> Iterator[Any]:
    with closing(chunks):  # type: ignore[type-var]
        while True:
            # The run starts inside the first next(): until then only its id is known.
            with spans.attached(spans.llm_call_context(lambda: _handler.span_of(run_id))):
                try:
                    chunk = next(chunks)
                except StopIteration:
                    return
            yield chunk


def _astream(wrapped: Callable[..., Any], model: Any, args: Any, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
    chosen = guarded(_with_run_id, *args, **kwargs) if is_on() and spans.current_trajectory() else None
    if chosen is None:
        return wrapped(*args, **kwargs)  # type: ignore[no-any-return]
    run_id, args, kwargs = chosen
    return _adrive(wrapped(*args, **kwargs), run_id)


async def _adrive(chunks: AsyncIterator[Any], run_id: UUID) -> AsyncIterator[Any]:
    async with aclosing(chunks):  # type: ignore[type-var]
        while True:
            with spans.attached(spans.llm_call_context(lambda: _handler.span_of(run_id))):
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
            yield chunk


def _model_name(serialized: Any, extra: Mapping[str, Any]) -> str:
    parameters = extra.get("invocation_params") or {}
    metadata = extra.get("metadata") or {}
    return str(parameters.get("model") or parameters.get("model_name") or metadata.get("ls_model_name") or "")


def _messages(messages: Sequence[BaseMessage]) -> list[Message]:
    return [from_openai(message) for message in convert_to_openai_messages(list(messages))]


def _output(generation: Any) -> Message:
    if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
        return _messages([generation.message])[0]
    return {"role": "assistant", "parts": [text(generation.text)]}


def _has(span: Span, attribute: str) -> bool:
    return attribute in (getattr(span, "attributes", None) or {})
