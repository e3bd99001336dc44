"""LLM calls at the HTTP client: whatever openai, anthropic, litellm or plain httpx send.

`httpx.Client.send`, `httpx2.Client.send` and their async twins are the one place where every SDK
passes (tried with httpx 0.28, httpx2 2.16). A request to one of the four LLM APIs inside a trajectory becomes one
span; inside an LLM call that a framework has already opened it completes that span instead. The
answer is read when the client reads it: a stream is teed, never read ahead.

A request to the gateway carries the trajectory's id in `x-art-trajectory`; no other host gets it.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import wrapt
from opentelemetry.trace import Span

from ..capture import spans
from ..capture.guard import guarded
from ..capture.spans import LiveTrajectory
from ..settings import get_settings
from . import wire
from .switch import here


def install(module: Any) -> None:
    """Wrap the clients of `httpx` or `httpx2`."""
    wrapt.wrap_function_wrapper(module, "Client.send", _send)
    wrapt.wrap_function_wrapper(module, "AsyncClient.send", _send_async)


def _send(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = guarded(_begin, *args, **kwargs)
    if call is None:
        return wrapped(*args, **kwargs)
    try:
        response = wrapped(*args, **kwargs)
    except BaseException as error:
        guarded(call.failed, error)
        raise
    guarded(call.answered, response)
    return response


async def _send_async(
    wrapped: Callable[..., Awaitable[Any]], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = guarded(_begin, *args, **kwargs)
    if call is None:
        return await wrapped(*args, **kwargs)
    try:
        response = await wrapped(*args, **kwargs)
    except BaseException as error:
        guarded(call.failed, error)
        raise
    guarded(call.answered, response)
    return response


class _Call:
    """One request on its way to an answer; ends its span once."""

    def __init__(self, api: str, span: Span, live: LiveTrajectory, *, owned: bool) -> None:
        self.api = api
        self._span = span
        self._live = live
        self._owned = owned
        self._open = True

    def failed(self, error: BaseException) -> None:
        if self._owned:
            spans.fail(self._span, error)
        self._end()

    def answered(self, response: Any) -> None:
        if response.is_stream_consumed or response.is_closed:
            self.finish(response, None, "done")
        elif hasattr(response.stream, "__aiter__"):
            response.stream = _async_tee(response, self)
        else:
            response.stream = _tee(response, self)

    def finish(self, response: Any, raw: list[bytes] | None, ended: str) -> None:
        """Read the answer, as far as it came (`raw` of a stream), and end the span."""
        if not self._open:
            return
        try:
            if self._span.is_recording():  # not if a framework's run was closed before its request
                self._read(response, response.content if raw is None else _collected(response, raw), ended)
        finally:
            self._end()

    def _read(self, response: Any, content: bytes, ended: str) -> None:
        self._span.set_attribute("http.response.status_code", response.status_code)
        if response.status_code >= 400:
            if self._owned:
                spans.fail(self._span, _HttpError(f"{response.status_code} {content[:2000].decode(errors='replace')}"))
            return
        if "text/event-stream" in response.headers.get("content-type", ""):
            answer = wire.read_stream(self.api, content)
            self._span.set_attribute("art.stream.end", "done" if answer.complete else ended)
        else:
            answer = wire.read_answer(self.api, json.loads(content))
        self._span.set_attributes(answer.attributes)
        self._span.set_attributes(spans.content_attributes(self._live, {spans.OUTPUT_MESSAGES: answer.messages}))

    def _end(self) -> None:
        self._open = False
        if self._owned:
            self._span.end()


class _HttpError(Exception):
    """Names an HTTP error status in a span."""


def _begin(request: Any, *_: Any, **__: Any) -> _Call | None:
    if (at := here()) is None:
        return None
    _address(request, at.live, at.span)
    api = wire.api_of(request.url.path) if request.method == "POST" else None
    if api is None:
        return None
    try:
        body = json.loads(request.content)
    except (ValueError, RuntimeError):  # not JSON, or an upload that can be read once
        return None
    if not isinstance(body, dict) or "model" not in body:
        return None
    read = wire.read_request(api, body)
    attributes = read.attributes | {"server.address": request.url.host}
    content: dict[str, Any] = {spans.INPUT_MESSAGES: read.messages}
    if read.tools:
        content[spans.TOOL_DEFINITIONS] = read.tools
    attributes |= spans.content_attributes(at.live, content)
    if at.call:
        at.span.set_attributes(attributes)
        span = at.span
    else:
        span = spans.start_span(read.operation, read.model, attributes, at.span)
        _address(request, at.live, span)
    return _Call(api, span, at.live, owned=not at.call)


def _address(request: Any, live: LiveTrajectory, span: Span) -> None:
    gateway = get_settings().gateway_url
    # In the client's own spelling of URLs: no default port, a lower-case host.
    if gateway and str(request.url).startswith(str(type(request.url)(gateway.rstrip("/") + "/"))):
        request.headers[spans.TRAJECTORY_HEADER] = f"{live.id}-{spans.span_id(span)}"


def _collected(response: Any, raw: list[bytes]) -> bytes:
    # A response of the same library undoes the content encoding, with whatever decoders it has.
    content: bytes = type(response)(response.status_code, headers=response.headers, content=b"".join(raw)).content
    return content


def _tee(response: Any, call: _Call) -> Any:
    inner, raw = response.stream, list[bytes]()

    class Tee(_byte_stream(response, "SyncByteStream")):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            try:
                for chunk in inner:
                    raw.append(chunk)
                    yield chunk
            except GeneratorExit:
                guarded(_finish, "closed")
                raise
            except BaseException as error:
                guarded(_finish, type(error).__name__)
                raise
            guarded(_finish, "done")

        def close(self) -> None:
            guarded(_finish, "closed")
            inner.close()

    def _finish(ended: str) -> None:
        call.finish(response, raw, ended)

    return Tee()


def _async_tee(response: Any, call: _Call) -> Any:
    inner, raw = response.stream, list[bytes]()

    class Tee(_byte_stream(response, "AsyncByteStream")):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for chunk in inner:
                    raw.append(chunk)
                    yield chunk
            except GeneratorExit:
                guarded(_finish, "closed")
                raise
            except BaseException as error:
                guarded(_finish, type(error).__name__)
                raise
            guarded(_finish, "done")

        async def aclose(self) -> None:
            guarded(_finish, "closed")
            await inner.aclose()

    def _finish(ended: str) -> None:
        call.finish(response, raw, ended)

    return Tee()


def _byte_stream(response: Any, name: str) -> type:
    import importlib

    base: type = getattr(importlib.import_module(type(response).__module__.partition(".")[0]), name)
    return base
