"""`@art.tool`: a plain function whose calls appear as tool calls. LangChain's tools appear by themselves."""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from opentelemetry.trace import Span

from ..errors import ConfigError
from . import spans
from .content import plain
from .guard import guarded
from .spans import Place

P = ParamSpec("P")
R = TypeVar("R")


def tool(function: Callable[P, R]) -> Callable[P, R]:
    """Record every call of `function` inside a trajectory: arguments, result or error, duration.

    Raises:
        ConfigError: for what is not a plain sync or async function.
    """
    _check(function)
    signature = inspect.signature(function)

    def opened(args: Any, kwargs: Any) -> "_ToolCall":
        return _ToolCall(function.__name__, signature, args, kwargs)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with opened(args, kwargs) as call:
                result = await function(*args, **kwargs)
                call.returned(result)
                return result

        return run_async  # type: ignore[return-value]

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with opened(args, kwargs) as call:
            result = function(*args, **kwargs)
            call.returned(result)
            return result

    return run


def _check(function: Any) -> None:
    if (
        not inspect.isfunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise ConfigError(f"@art.tool takes a plain sync or async function, got {function!r}")


class _ToolCall(AbstractContextManager["_ToolCall"]):
    """The span of one call, current while the function runs; nothing outside a trajectory."""

    def __init__(self, name: str, signature: inspect.Signature, args: Any, kwargs: Any) -> None:
        self._span: Span | None = None
        here = spans.place()
        if here is None:
            return
        self._live = here.live
        self._span = guarded(start_tool, here, name, _bound(signature, args, kwargs))
        if self._span is not None:
            self._attached = spans.attached(spans.span_context(self._live, self._span))

    def __enter__(self) -> "_ToolCall":
        if self._span is not None:
            self._attached.__enter__()
        return self

    def returned(self, result: Any) -> None:
        if self._span is not None:
            self._span.set_attributes(guarded(spans.content_attributes, self._live, {spans.TOOL_RESULT: result}) or {})

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._span is None:
            return
        self._attached.__exit__(None, None, None)
        if error is not None:
            guarded(spans.fail, self._span, error)
        guarded(self._span.end)


def start_tool(here: Place, name: str, arguments: Any, call_id: str | None = None) -> Span:
    """Start the span of a tool call at this place. Its id is the one that the model gave it, where it asked for it."""
    attributes = {spans.TOOL_NAME: name}
    if asked := spans.take_request(here.live, name, plain(arguments) if here.live.asked else None, call_id):
        attributes[spans.TOOL_CALL_ID] = asked
    attributes |= guarded(spans.content_attributes, here.live, {spans.TOOL_ARGUMENTS: arguments}) or {}
    return spans.start_span(spans.EXECUTE_TOOL, name, attributes, here.span)


def _bound(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:  # the call itself is wrong: the function is about to say so
        return {"args": args, "kwargs": kwargs}
