"""A service that is called from a trajectory elsewhere: its LLM calls belong to that one."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx
import pytest
import stub_api
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

import art_sdk as art
from art_sdk import settings
from art_sdk.capture import guard, spans
from art_sdk.capture.headers import join_trajectory
from art_sdk.integrations import asgi, wsgi
from art_sdk.store import Store

pytestmark = pytest.mark.usefixtures("home")

SENT = "0123456789abcdef0123456789abcdef-0123456789abcdef"
NAME = "x-art-trajectory"


def current() -> str:
    live = art.current_trajectory()
    return live.id if live else "none"


class Pairs:
    """As werkzeug's headers: no mapping, but with `items`."""

    def items(self) -> Iterator[tuple[str, str]]:
        yield "Content-Type", "text/plain"
        yield "X-Art-Trajectory", SENT


def message() -> Message:
    found = Message()
    found["X-Art-Trajectory"] = SENT
    return found


@pytest.mark.parametrize(
    "headers",
    [
        {NAME: SENT},
        {"X-ART-Trajectory": f" {SENT} "},
        {NAME.encode(): SENT.encode()},
        [(b"host", b"b"), (NAME.encode(), SENT.encode())],
        Headers({NAME: SENT}),
        httpx.Headers({NAME: SENT}),
        {"HTTP_X_ART_TRAJECTORY": SENT, "wsgi.input": object()},
        Pairs(),
        message(),
    ],
    ids=lambda headers: type(headers).__name__,
)
def test_the_trajectory_is_found_in_the_headers_of_every_framework(headers: Any) -> None:
    with join_trajectory(headers):
        assert current() == SENT[:32]
        assert spans.header(spans.place()) == SENT
    assert current() == "none"


@pytest.mark.parametrize(
    "value",
    ["", "x", SENT.upper(), SENT + "0", SENT[:32], "0" * 32 + SENT[32:], SENT[:33] + "0" * 16, SENT + "\n" + SENT, "é"],
)
def test_a_wrong_header_is_logged_once_and_changes_nothing(value: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), art.trajectory_scope("here") as here:
        for _ in range(3):
            with join_trajectory({NAME: value}):
                assert current() == here.id
    assert len(caplog.records) == 1


@pytest.mark.parametrize("headers", [{}, [], None, 3, [1, 2], ["ab"], {1: 2}, {NAME: object()}, [(NAME,)]])
def test_whatever_the_headers_are_nothing_is_raised(headers: Any) -> None:
    with join_trajectory(headers):
        assert current() == "none"


def test_what_the_block_raises_passes_and_the_trajectory_is_left() -> None:
    with pytest.raises(ValueError), join_trajectory({NAME: SENT}):
        raise ValueError
    assert current() == "none"


def test_an_llm_call_of_the_service_is_a_span_of_the_callers_trajectory(stored: Callable[[], Store]) -> None:
    @art.trajectory
    def inner() -> str:
        return current()

    with stub_api.serve() as api:
        with art.trajectory_scope("caller") as caller:
            sent = spans.header(spans.place())
        with join_trajectory({NAME: sent}):
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            httpx.post(f"{api.openai_url}/chat/completions", json=body)
            nested = inner()
    runs = {run.id: run for run in stored().trajectories()}
    root, call = runs[caller.id].spans
    assert (call.operation, call.parent_id, runs[caller.id].status) == ("chat", root.span_id, "finished")
    assert runs[nested].parent_id == caller.id


# Middleware


@pytest.fixture
def listed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The services of these tests are ones that the user lists: others get no header."""
    monkeypatch.setenv("ART_TRACE_HOSTS", "b,127.0.0.1")
    settings.reset()


def header(number: int) -> dict[str, str]:
    return {NAME: f"{number:032x}-{number:016x}"}


async def whole(request: Request) -> PlainTextResponse:
    await asyncio.sleep(0.01)
    return PlainTextResponse(current())


def whole_in_thread(request: Request) -> PlainTextResponse:
    return PlainTextResponse(current())


async def streamed(request: Request) -> StreamingResponse:
    async def body() -> Any:
        for _ in range(3):
            yield f"{current()}\n"
            await asyncio.sleep(0.005)

    return StreamingResponse(body())


def streamed_in_thread(request: Request) -> StreamingResponse:
    return StreamingResponse(f"{current()}\n" for _ in range(3))


ROUTES = [Route(f"/{route.__name__}", route) for route in (whole, whole_in_thread, streamed, streamed_in_thread)]


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_an_asgi_request_is_in_its_own_trajectory_to_the_end_of_its_body(route: Route) -> None:
    app = Starlette(routes=ROUTES)
    app.add_middleware(asgi.TrajectoryMiddleware)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://b") as client:
        asked = [client.get(route.path, headers=header(n)) for n in range(1, 20)]
        answers = await asyncio.gather(client.get(route.path), *asked, client.get(route.path))
    ids = ["none", *(f"{n:032x}" for n in range(1, 20)), "none"]
    assert [set(answer.text.split()) for answer in answers] == [{identity} for identity in ids]
    assert current() == "none"


async def test_asgi_lifespan_and_errors_pass() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])
        raise ValueError("no")

    for scope in ({"type": "lifespan"}, {"type": "http", "headers": [(NAME.encode(), SENT.encode())]}):
        with pytest.raises(ValueError, match="no"):
            await asgi.TrajectoryMiddleware(app)(scope, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan", "http"]
    assert current() == "none"


class Body:
    """A WSGI body that tells where each of its steps ran."""

    def __init__(self) -> None:
        self.closed_in: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(3):
            yield f"{current()}\n".encode()

    def close(self) -> None:
        self.closed_in = current()


@contextmanager
def serving(app: Any) -> Iterator[str]:
    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


@pytest.mark.usefixtures("listed")
def test_what_a_trajectory_asks_a_listed_service_is_done_inside_it() -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [("content-type", "text/plain")])
        return [current().encode()]

    with serving(wsgi.TrajectoryMiddleware(app)) as url:
        with art.trajectory_scope("caller") as caller:
            assert httpx.get(url).text == caller.id
        assert httpx.get(url).text == "none"


@pytest.mark.usefixtures("listed")
def test_a_wsgi_request_is_in_its_own_trajectory_to_the_end_of_its_body() -> None:
    bodies: list[Body] = []
    between: list[str] = []

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [("content-type", "text/plain")])
        bodies.append(Body())
        return bodies[-1] if environ["PATH_INFO"] == "/stream" else [current().encode()]

    inside = wsgi.TrajectoryMiddleware(app)

    def server(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = inside(environ, start_response)
        between.append(current())
        return body

    with serving(server) as url:
        for path in ("/stream", "/whole"):
            for sent, identity in ((header(7), f"{7:032x}"), ({}, "none"), (header(8), f"{8:032x}")):
                answer = httpx.get(url + path, headers=sent)
                assert set(answer.text.split()) == {identity}
                assert path == "/whole" or bodies[-1].closed_in == identity
    assert set(between) == {"none"}


def test_a_wsgi_body_without_code_of_its_own_is_handed_on_as_it_is() -> None:
    whole = [b"one", b"two"]
    body = wsgi.TrajectoryMiddleware(lambda environ, start: whole)({"HTTP_X_ART_TRAJECTORY": SENT}, lambda *_: None)
    assert body is whole


def test_two_wsgi_bodies_read_in_turn_do_not_mix() -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        return (current().encode() for _ in range(3))

    inside = wsgi.TrajectoryMiddleware(app)
    bodies = [inside({"HTTP_X_ART_TRAJECTORY": header(n)[NAME]}, lambda *_: None) for n in (1, 2)]
    read = list(zip(*bodies, strict=True))
    assert read == [(f"{1:032x}".encode(), f"{2:032x}".encode())] * 3
    assert not guard.errors
