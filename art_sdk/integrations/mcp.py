"""MCP: what a client session asks a server to do becomes a tool call.

`ClientSession.call_tool` is where every call passes. In version 2 `Client.call_tool` may make several requests
of one call: the span is then the client's. A tool of another framework that only hands the call on to MCP, as
langchain-mcp-adapters' do, already has a span, and one call has one. Tried with mcp 1.30 and 2.3.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import wrapt
from opentelemetry.trace import Span

from ..capture import spans
from ..capture.content import plain
from ..capture.guard import guarded
from ..capture.spans import LiveTrajectory
from ..capture.tools import start_tool
from .switch import here


def install_session(module: Any) -> None:
    """Wrap `mcp.client.session.ClientSession`."""
    wrapt.wrap_function_wrapper(module, "ClientSession.call_tool", _call_tool)


def install_client(module: Any) -> None:
    """Wrap `mcp.client.client.Client`, which version 1 doesn't have."""
    wrapt.wrap_function_wrapper(module, "Client.call_tool", _call_tool)


async def _call_tool(
    wrapped: Callable[..., Awaitable[Any]], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    started = guarded(_begin, *args, **kwargs)
    if started is None:
        return await wrapped(*args, **kwargs)
    live, span = started
    try:
        with spans.attached(spans.span_context(live, span)):
            result = await wrapped(*args, **kwargs)
    except BaseException as error:
        guarded(spans.fail, span, error)
        raise
    else:
        guarded(_read, live, span, result)
        return result
    finally:
        guarded(span.end)


def _begin(name: str, arguments: Any = None, *_: Any, **__: Any) -> tuple[LiveTrajectory, Span] | None:
    at = here()
    if at is None or _is_call_of(at.span, name):
        return None
    return at.live, start_tool(at, name, {} if arguments is None else arguments)


def _is_call_of(span: Span, name: str) -> bool:
    attributes = spans.attributes_of(span)
    return attributes.get(spans.OPERATION) == spans.EXECUTE_TOOL and attributes.get(spans.TOOL_NAME) == name


def _read(live: LiveTrajectory, span: Span, result: Any) -> None:
    # Version 1 spells its attributes as the protocol does, version 2 as Python does.
    structured = getattr(result, "structured_content", getattr(result, "structuredContent", None))
    content = getattr(result, "content", None)
    found = {"content": [_block(block) for block in content]} if isinstance(content, list) else plain(result)
    if structured is not None:
        found["structuredContent"] = structured
    span.set_attributes(spans.content_attributes(live, {spans.TOOL_RESULT: found}))
    if getattr(result, "is_error", getattr(result, "isError", False)):
        span.set_attribute(spans.ERROR_TYPE, "tool_error")


def _block(block: Any) -> dict[str, Any]:
    written: dict[str, Any] = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    return written
