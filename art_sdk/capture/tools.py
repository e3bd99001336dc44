"""`@art.tool`: a plain function whose calls appear as tool calls. LangChain's tools appear by themselves."""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from opentelemetry.trace import Span

from ..errors import ConfigError
from . import spans
from .guard import guarded

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
        self._live = spans.current_trajectory()
        if self._live is None or not self._live.root.is_recording():
            return
        attributes = {spans.TOOL_NAME: name}
        if arguments := guarded(spans.write_content, self._live, _bound(signature, args, kwargs)):
            attributes[spans.TOOL_ARGUMENTS] = arguments
        self._span = guarded(spans.start_span, spans.EXECUTE_TOOL, name, attributes)
        if self._span is not None:
            self._attached = spans.attached(spans.span_context(self._span))

    def __enter__(self) -> "_ToolCall":
        if self._span is not None:
            self._attached.__enter__()
        return self

    def returned(self, result: Any) -> None:
        if self._span is not None and self._live is not None:
            guarded(spans.set_content, self._span, self._live, spans.TOOL_RESULT, result)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._span is None:
            return
        self._attached.__exit__(None, None, None)
        if error is not None:
            guarded(spans.fail, self._span, error)
        guarded(self._span.end)


def _bound(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:  # the call itself is wrong: the function is about to say so
        return {"args": args, "kwargs": kwargs}
