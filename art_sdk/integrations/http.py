"""LLM calls at the HTTP client: whatever openai, anthropic, litellm or plain httpx send.

`httpx.Client.send`, `httpx2.Client.send` and their async twins are the one place where every SDK
passes (tried with httpx 0.28, httpx2 2.16). A request to one of the four LLM APIs inside a trajectory becomes one
span; inside an LLM call that a framework has already opened it completes that span instead. The
answer is read when the client reads it: a stream is teed, never read ahead.

An SDK's `request` that sends again is still one call (openai 3.57, anthropic 2.14): its span begins with the first
attempt and ends with the last, and `art.http.attempts` counts them.

A request to the gateway, or to a host of `ART_TRACE_HOSTS`, carries the trajectory's id in `x-art-trajectory`; no
other host gets it, nor one that such a request is redirected to.
"""

import os
import weakref
from _thread import start_new_thread
from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

import wrapt
from opentelemetry import context as otel_context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY
from opentelemetry.trace import Span

from ..capture import runs, spans
from ..capture.guard import guarded
from ..capture.spans import LiveTrajectory, Place
from ..settings import get_settings
from . import repeats, switch, wire
from .switch import here

_REQUEST_KEY = otel_context.create_key("art-sdk-sdk-request")


def install(module: Any) -> None:
    """Wrap the clients of `httpx` or `httpx2`."""
    wrapt.wrap_function_wrapper(module, "Client.send", _send)
    wrapt.wrap_function_wrapper(module, "AsyncClient.send", _send_async)
    for client in (module.Client, module.AsyncClient):
        if hasattr(client, "_send_single_request"):  # once for each redirect that is followed
            wrapt.wrap_function_wrapper(client, "_send_single_request", _hop)


def wrap_sdk(module: Any) -> None:
    """Wrap the base clients of `openai` or `anthropic`, whose `request` sends until it has an answer."""
    for client, wrapper in (("SyncAPIClient", _request), ("AsyncAPIClient", _request_async)):
        if hasattr(getattr(module, client, None), "request"):
            wrapt.wrap_function_wrapper(module, f"{client}.request", wrapper)


def _send(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = guarded(_begin, *args, **kwargs)
    if call is None:
        return wrapped(*args, **kwargs)
    try:
        response = wrapped(*args, **kwargs)
    except BaseException as error:
        guarded(call.attempt_failed, error)
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
        guarded(call.attempt_failed, error)
        raise
    guarded(call.answered, response)
    return response


def _hop(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    guarded(_keep_home, *args, **kwargs)
    return wrapped(*args, **kwargs)


def _request(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not guarded(_watching):
        return wrapped(*args, **kwargs)
    with _SdkRequest():
        return wrapped(*args, **kwargs)


async def _request_async(
    wrapped: Callable[..., Awaitable[Any]], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if not guarded(_watching):
        return await wrapped(*args, **kwargs)
    with _SdkRequest():
        return await wrapped(*args, **kwargs)


class _SdkRequest:
    """One `request` of an SDK while it runs, as a block: the call whose failed attempt it may make again."""

    def __init__(self) -> None:
        self.call: _Call | None = None
        self.running = True

    def __enter__(self) -> None:
        self._attached = spans.attached(otel_context.set_value(_REQUEST_KEY, self))
        self._attached.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._attached.__exit__()
        guarded(self._left, error)

    def _left(self, error: BaseException | None) -> None:
        self.running = False
        call, self.call = self.call, None
        if call is None or not call.open:
            return
        call.held = False
        # What the server or the connection said is the cause; the SDK's own exception is made from it.
        cancelled = error is not None and spans.is_cancel(error)
        failure = error if cancelled or call.failure is None else call.failure
        if failure is not None:
            call.fail(failure)


class HttpError(Exception):
    """An answer with an error status, or one that says that it is an error."""


class _Call:
    """One LLM call, from its first request to the end of its answer; ends its span once.

    Its answer may be read in another thread, or never: whoever is first ends it.
    """

    def __init__(self, api: str, span: Span, live: LiveTrajectory, *, owned: bool, alone: bool) -> None:
        self.api = api
        self.open = True
        self.held = False
        """While an SDK may make it again."""
        self.failure: BaseException | None = None
        """Why its last attempt failed, while it is `held`."""
        self.reading: _Reading | None = None
        self.live = live
        self._span = span
        self._owned = owned
        self._alone = alone
        self._attempts = 1
        self._once = iter((True,))
        self._result: Any = None
        self._error: BaseException | None = None
        live.at_end[self] = self.sweep

    def again(self, request: Any) -> None:
        """The SDK makes it again with this request."""
        self._attempts += 1
        self._let_go()
        self._span.set_attribute(spans.ATTEMPTS, self._attempts)
        _address(request, self.live, self._span)

    def answered(self, response: Any) -> None:
        if not self.open:  # the trajectory has ended meanwhile
            return
        reading = self.reading = _Reading(self, response)
        self._span.set_attribute("http.response.status_code", reading.status)
        if response.is_stream_consumed or response.is_closed:
            reading.finish("done", content=_content(response))
            return
        if reading.is_error:
            self.failure = HttpError(str(reading.status))
        elif self._owned:
            self.live.streams.add(self)
        kind: Any = type(response.stream)
        response.stream = _tee_of(kind)(response.stream, reading)
        weakref.finalize(response.stream, reading.dropped).atexit = False

    def attempt_failed(self, error: BaseException) -> None:
        if self.held:
            self.failure = error
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End it without an answer."""
        if next(self._once, None):
            self._fail(error)
            self._end()

    def end(self, reading: "_Reading", content: bytes, ended: str, error: BaseException | None) -> None:
        """End it with an answer, as far as it came."""
        if next(self._once, None):
            try:
                if self._span.is_recording():  # not if a framework's run was closed before its request
                    self._read(reading, content, ended, error)
            finally:
                self._end()

    def sweep(self) -> None:
        """End it with the trajectory, which it would outlive."""
        if self.reading is not None and not self.reading.is_error:
            self.reading.finish("closed", error=CancelledError())
        else:
            self.fail(self.failure or CancelledError())

    def _read(self, reading: "_Reading", content: bytes, ended: str, error: BaseException | None) -> None:
        end: dict[str, Any] = {}
        if "text/event-stream" in reading.headers.get("content-type", ""):
            answer = wire.read_stream(self.api, content)
            end["art.stream.end"] = "done" if answer.complete else ended
        elif ended == "done" and content:
            answer = wire.read_answer(self.api, wire.decoded(content))
        else:
            answer = wire.Answer(complete=False)
            end["art.stream.end"] = ended
        found = spans.content_attributes(self.live, {spans.OUTPUT_MESSAGES: answer.messages})
        self._span.set_attributes(answer.attributes | end | found)
        self._result = answer.messages[0] if len(answer.messages) == 1 else answer.messages
        if answer.error is not None:
            self._fail(HttpError(answer.error))
        elif not answer.complete and error is not None:
            self._fail(error)
        elif not answer.complete and ended == "closed":
            self._error = GeneratorExit()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        if self._owned:  # else the framework whose call it is says so itself
            spans.fail(self._span, error)
            if isinstance(error, HttpError) and self.reading is not None and self.reading.is_error:
                self._span.set_attribute(spans.ERROR_TYPE, str(self.reading.status))

    def _end(self) -> None:
        self.open = False
        self._let_go()
        result, error, live = self._result, self._error, self.live
        self._result = self._error = None  # an error's traceback leads back to here
        live.streams.discard(self)
        live.at_end.pop(self, None)
        if self._owned:
            self._span.end()
        if self._alone:
            runs.end_auto(live, result, error)
        elif not live.streams and (when_read := live.when_read) is not None:
            live.when_read = None
            when_read()

    def _let_go(self) -> None:
        if self.reading is not None:
            self.reading.call = None
        self.reading = self.failure = None


class _Reading:
    """An answer while the client reads it.

    Holds neither the response nor its stream: a client that lets go of them has stopped reading.
    """

    def __init__(self, call: _Call, response: Any) -> None:
        self.call: _Call | None = call
        """None once nothing more is to be read for it."""
        self.status: int = response.status_code
        self.headers = response.headers
        self.is_error = not 200 <= self.status < 300
        self._kind = type(response)
        self._raw: list[bytes] = []
        self._finished = False

    def add(self, chunk: bytes) -> None:
        if self.call is not None:
            self._raw.append(chunk)

    def finish(self, ended: str, *, content: bytes | None = None, error: BaseException | None = None) -> None:
        """The answer has been read, to its end or as far as it will be."""
        call = self.call
        if self._finished or call is None:
            return
        self._finished = True
        raw, self._raw = b"".join(self._raw), []
        if content is None:
            content = raw
            if "content-encoding" in self.headers:
                # A response of the same library undoes it, with whatever decoders it has.
                content = _content(self._kind(self.status, headers=self.headers, content=raw))
        if not self.is_error:
            call.end(self, content, ended, error)
        elif error is not None and spans.is_cancel(error):
            call.attempt_failed(error)
        else:
            call.attempt_failed(HttpError(f"{self.status} {content[:2000].decode(errors='replace')}"))

    def dropped(self) -> None:
        """Nobody can read it any more.

        That may be noticed in the middle of anything, a write to the journal too: another thread ends the call.
        """
        if self.call is not None and self.call.live.process == os.getpid():
            start_new_thread(guarded, (self.finish, "closed"))


def _content(response: Any) -> bytes:
    with suppress(RuntimeError):  # closed before anybody read it
        content: bytes = response.content
        return content
    return b""


@cache
def _tee_of(base: Any) -> Callable[[Any, _Reading], Any]:
    """A stream of the client's own kind that passes on what `inner` gives, and keeps it."""

    class Tee(base):  # type: ignore[misc]
        def __init__(self, inner: Any, reading: _Reading) -> None:
            self._inner = inner
            self._reading = reading

        def __iter__(self) -> Iterator[bytes]:
            try:
                for chunk in self._inner:
                    self._reading.add(chunk)
                    yield chunk
            except BaseException as error:
                guarded(self._broken, error)
                raise
            guarded(self._reading.finish, "done")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for chunk in self._inner:
                    self._reading.add(chunk)
                    yield chunk
            except BaseException as error:
                guarded(self._broken, error)
                raise
            guarded(self._reading.finish, "done")

        def _broken(self, error: BaseException) -> None:
            if isinstance(error, GeneratorExit):
                self._reading.finish("closed")
            else:
                self._reading.finish(type(error).__name__, error=error)

        def close(self) -> None:
            guarded(self._reading.finish, "closed")
            self._inner.close()

        async def aclose(self) -> None:
            guarded(self._reading.finish, "closed")
            await self._inner.aclose()

    return Tee


def _watching() -> bool:
    """Whether an LLM call made here is captured."""
    return here() is not None or _begins_alone()


def _begins_alone() -> bool:
    """Whether an LLM call outside any trajectory becomes one."""
    return switch.is_on() and not otel_context.get_value(_SUPPRESS_INSTRUMENTATION_KEY) and get_settings().auto


def _begin(request: Any, *_: Any, **__: Any) -> _Call | None:
    at = here()
    if at is not None:
        _address(request, at.live, at.span)
    elif not _begins_alone():
        return None
    api = wire.api_of(request.url.path) if request.method == "POST" else None
    if api is None:
        return None
    sdk: _SdkRequest | None = otel_context.get_value(_REQUEST_KEY)  # type: ignore[assignment]
    if sdk is not None and sdk.call is not None and sdk.call.open and sdk.call.failure is not None:
        sdk.call.again(request)
        return sdk.call
    try:
        sent = wire.read_request(api, request.content)
    except (ValueError, RuntimeError):  # not JSON, or an upload that can be read once
        return None
    if sent is None:
        return None
    call = _call(api, sent, request, at)
    if call is not None and sdk is not None and sdk.running:
        sdk.call = call
        call.held = True
    return call


def _call(api: str, sent: wire.Request, request: Any, at: Place | None) -> _Call | None:
    alone = at is None
    if at is None:
        messages = [item.read() for item in sent.messages]
        live = runs.begin_auto(f"{sent.operation} {sent.model}", {"messages": messages})
        if live is None:
            return None
        at = Place(live, live.root)
    attributes = sent.attributes | {"server.address": request.url.host}
    content = {spans.INPUT_MESSAGES: sent.messages}
    if sent.tools:
        content[spans.TOOL_DEFINITIONS] = sent.tools
    attributes |= repeats.content_attributes(at.live, content)
    answered = spans.OUTPUT_MESSAGES in spans.attributes_of(at.span)
    if at.call and not answered:  # a model that asks again after an answer makes another call
        at.span.set_attributes(attributes)
        spans.tell(at.span)
        return _Call(api, at.span, at.live, owned=False, alone=False)
    span = spans.start_span(sent.operation, sent.model, attributes, at.span)
    at.live.calls.append(span)
    _address(request, at.live, span)
    return _Call(api, span, at.live, owned=True, alone=alone)


def _address(request: Any, live: LiveTrajectory, span: Span) -> None:
    if _is_ours(request.url):
        request.headers[spans.TRAJECTORY_HEADER] = spans.header(Place(live, span))
        request.extensions[_ADDRESSED] = True


_ADDRESSED = "art_sdk.addressed"


def _keep_home(request: Any) -> None:
    """A redirected request has the headers and extensions of the first one. What the user wrote there stays."""
    if _ADDRESSED in request.extensions and not _is_ours(request.url):
        request.headers.pop(spans.TRAJECTORY_HEADER, None)


def _is_ours(url: Any) -> bool:
    """Whether a URL is the gateway's or that of a host which the user lists."""
    settings = get_settings()
    if settings.gateway_url and str(url).startswith(_spelled(url.__class__, settings.gateway_url)):
        return True
    if not settings.trace_hosts:
        return False
    host, port = url.host.lower(), url.port or {"http": 80, "https": 443}.get(url.scheme)
    return not settings.hosts.isdisjoint((host, f"{host}:{port}"))


@lru_cache(maxsize=8)
def _spelled(kind: Callable[[str], Any], gateway: str) -> str:
    """The gateway's URL as the client spells URLs: no default port, a lower-case host."""
    return str(kind(gateway.rstrip("/") + "/"))
