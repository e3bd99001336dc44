"""Which hosts are told the trajectory: the gateway and those that the user lists. Nobody else, redirects included."""

from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import openai
import pytest
from stub_api import StubApi

import art_sdk as art
from art_sdk import settings
from art_sdk.store.reading import Trajectory

Captured = Callable[[], Trajectory]
HEADER = "x-art-trajectory"


def ask(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings.reset()


def by_name(api: StubApi) -> str:
    """The same server under another name."""
    return api.url.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("listed", ["127.0.0.1", "other.host, 127.0.0.1:{port}", " 127.0.0.1 ,"])
def test_listed_hosts_are_told_the_trajectory_with_every_request(
    api: StubApi, captured: Captured, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    ask(monkeypatch, ART_TRACE_HOSTS=listed.format(port=api.url.rpartition(":")[2]))

    @art.trajectory
    def handle() -> None:
        httpx.post(f"{api.url}/orders", json={})
        httpx2.post(f"{api.url}/orders", json={})
        with openai.OpenAI(base_url=api.openai_url, api_key="x") as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        httpx.post(f"{by_name(api)}/orders", json={})

    handle()
    run = captured()
    root, call = run.spans
    assert [request.headers.get(HEADER) for request in api.requests] == [
        f"{run.id}-{root.span_id}",
        f"{run.id}-{root.span_id}",
        f"{run.id}-{call.span_id}",
        None,
    ]


@pytest.mark.parametrize("listed", ["127.0.0.1:1", "127.0.0", "localhost", "evil127.0.0.1"])
def test_a_host_or_port_that_is_not_listed_is_told_nothing(
    api: StubApi, captured: Captured, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    ask(monkeypatch, ART_TRACE_HOSTS=listed)

    @art.trajectory
    def handle() -> None:
        httpx.post(f"{api.url}/orders", json={})

    handle()
    captured()
    assert HEADER not in api.requests[0].headers


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_redirect_to_another_host_does_not_take_it_along(
    api: StubApi, captured: Captured, monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    ask(monkeypatch, ART_TRACE_HOSTS="127.0.0.1")

    @art.trajectory
    def handle() -> None:
        with library.Client(follow_redirects=True) as client:
            client.post(f"{api.url}/moved?to={by_name(api)}/orders", json={})
            client.post(f"{api.url}/moved?to={api.url}/orders", json={})

    handle()
    captured()
    assert [(request.path[:7], HEADER in request.headers) for request in api.requests] == [
        ("/moved?", True),
        ("/orders", False),
        ("/moved?", True),
        ("/orders", True),
    ]


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_an_async_redirect_to_another_host_does_not_take_it_along(
    api: StubApi, captured: Captured, monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    ask(monkeypatch, ART_GATEWAY_URL=api.url)

    @art.trajectory
    async def handle() -> None:
        async with library.AsyncClient(follow_redirects=True) as client:
            await client.post(f"{api.url}/moved?to={by_name(api)}/orders", json={})

    await handle()
    captured()
    assert [HEADER in request.headers for request in api.requests] == [True, False]


def test_a_redirect_that_the_program_follows_itself_does_not_take_it_along(
    api: StubApi, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(monkeypatch, ART_TRACE_HOSTS="127.0.0.1")

    @art.trajectory
    def handle() -> None:
        with httpx.Client() as client:
            moved = client.post(f"{api.url}/moved?to={by_name(api)}/orders", json={})
            assert moved.next_request is not None
            client.send(moved.next_request)

    handle()
    captured()
    assert [HEADER in request.headers for request in api.requests] == [True, False]


def test_passwords_and_queries_of_urls_are_stored_nowhere(
    api: StubApi, captured: Captured, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = api.url.removeprefix("http://")
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

    @art.trajectory
    def handle() -> None:
        with httpx.Client() as client:
            client.post(f"http://bob:hunter2pw@{host}/v1/chat/completions?key=topsecretquery", json=body)
            with pytest.raises(httpx.ConnectError):
                client.post("http://bob:hunter2pw@127.0.0.1:9/v1/chat/completions?key=topsecretquery", json=body)

    handle()
    run = captured()
    assert [span.attributes["server.address"] for span in run.spans[1:]] == ["127.0.0.1"] * 2
    for file in home.rglob("*"):
        if file.is_file():
            assert b"hunter2pw" not in file.read_bytes()
            assert b"topsecretquery" not in file.read_bytes()
