"""`@art.tool`: a plain function whose calls appear as tool calls. LangChain's tools appear by themselves."""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from opentelemetry.trace import Span

from . import spans

P = ParamSpec("P")
R = TypeVar("R")


def tool(function: Callable[P, R]) -> Callable[P, R]:
    """Record every call of `function` inside a trajectory: arguments, result or error, duration."""
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


class _ToolCall(AbstractContextManager["_ToolCall"]):
    """The span of one call, current while the function runs; nothing outside a trajectory."""

    def __init__(self, name: str, signature: inspect.Signature, args: Any, kwargs: Any) -> None:
        self._span: Span | None = None
        self._live = spans.current_trajectory()
        if self._live is None:
            return
        self._span = spans.start_span(spans.EXECUTE_TOOL, name, {spans.TOOL_NAME: name})
        try:
            arguments: Any = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError:  # the call itself is wrong: the function is about to say so
            arguments = {"args": args, "kwargs": kwargs}
        spans.set_content(self._span, self._live, spans.TOOL_ARGUMENTS, arguments)
        self._attached = spans.attached(spans.span_context(self._span))

    def __enter__(self) -> "_ToolCall":
        if self._span is not None:
            self._attached.__enter__()
        return self

    def returned(self, result: Any) -> None:
        if self._span is not None and self._live is not None:
            spans.set_content(self._span, self._live, spans.TOOL_RESULT, result)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._span is None:
            return
        self._attached.__exit__(None, None, None)
        if error is not None:
            spans.fail(self._span, error)
        self._span.end()
