"""A message that a request repeats is known by its bytes: what was kept for it stands, and nothing is done again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from stub_api import StubApi

import art_sdk as art
from art_sdk import settings
from art_sdk.capture import redaction
from art_sdk.capture.spans import LiveTrajectory
from art_sdk.integrations import messages, repeats, wire
from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

Calls = Callable[[], list[Span]]
Captured = Callable[[], Trajectory]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def client(api: StubApi) -> Any:
    with openai.OpenAI(base_url=api.openai_url, api_key="x", max_retries=0) as made:
        yield made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The messages that were decoded and converted."""
    seen: list[Any] = []

    def spied(message: Any) -> Any:
        seen.append(message["content"])
        return messages.from_openai(message)

    monkeypatch.setattr(wire, "from_openai", spied)
    return seen


def test_each_message_of_a_conversation_is_read_once(client: Any, calls: Calls, read: list[Any]) -> None:
    @art.trajectory
    def handle() -> None:
        history = [{"role": "system", "content": "Be brief."}]
        for turn in range(5):
            history.append(user(f"turn {turn}"))
            history.append({"role": "assistant", "content": ask(client, history)})

    handle()
    assert len(read) == len(set(read)) + 4  # answers are read as they come and as they are sent, but for the last
    (*_, last) = calls()
    assert [part["content"] for message in last.attributes["gen_ai.input.messages"] for part in message["parts"]] == [
        "Be brief.",
        *(text for turn in range(4) for text in (f"turn {turn}", f"echo: turn {turn}")),
        "turn 4",
    ]


def ask(client: Any, history: list[Any]) -> Any:
    return client.chat.completions.create(model="m", messages=history).choices[0].message.content


def test_what_requests_begin_with_is_read_once_and_stored_with_each_trajectory(
    client: Any, stored: Callable[[], Store], read: list[Any]
) -> None:
    @art.trajectory
    def handle(n: int) -> None:
        ask(client, [user("the system's words"), user("the same")])

    handle(1)
    handle(2)
    assert (read.count("the system's words"), read.count("the same")) == (1, 2)
    for run in stored().trajectories():
        said = run.spans[1].attributes["gen_ai.input.messages"]
        assert [message["parts"][0]["content"] for message in said] == ["the system's words", "the same"]


def test_what_requests_begin_with_is_masked_by_the_rules_of_the_moment(
    client: Any, stored: Callable[[], Store], mask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    @art.trajectory
    def handle(words: str) -> None:
        ask(client, [user("Ada is at ada@example.com")])

    handle("by mask")
    redaction.set_mask(None)
    handle("as it is")
    monkeypatch.setenv("ART_REDACT", "email")
    settings.reset()
    handle("by ART_REDACT")
    said = {
        run.spans[0].attributes["art.input"]["words"]: (
            run.spans[1].attributes["gen_ai.input.messages"][0]["parts"][0]["content"],
            run.spans[1].attributes.get("art.masked", False),
        )
        for run in stored().trajectories()
    }
    assert said == {
        "by mask": ("[name] is at ada@example.com", True),
        "as it is": ("Ada is at ada@example.com", False),
        "by ART_REDACT": ("Ada is at [e-mail]", True),
    }


@pytest.mark.slow
def test_only_so_many_beginnings_are_remembered(client: Any, stored: Callable[[], Store]) -> None:
    @art.trajectory
    def handle() -> None:
        for n in range(repeats._MAX_BEGINNINGS + 10):
            ask(client, [user(f"beginning {n}")])
        ask(client, [user("x" * repeats._MAX_BYTES)])

    handle()
    assert 0 < len(repeats._beginnings) <= repeats._MAX_BEGINNINGS
    assert all(len(known.content.data) <= repeats._MAX_BYTES for known in repeats._beginnings.values())


def test_the_same_bytes_in_another_place_are_read_as_what_they_are_there(api: StubApi, calls: Calls) -> None:
    @art.trajectory
    def handle() -> None:
        with anthropic.Anthropic(base_url=api.url, api_key="x") as client:
            client.messages.create(model="c", max_tokens=9, system="hi", messages=[user("a")])
        with openai.OpenAI(base_url=api.openai_url, api_key="x") as client:
            client.completions.create(model="m", prompt="hi")
            client.responses.create(model="m", input="hi", instructions="hi")

    handle()
    assert [[m["role"] for m in span.attributes["gen_ai.input.messages"]] for span in calls()] == [
        ["system", "user"],
        ["user"],
        ["system", "user"],
    ]


@pytest.fixture
def mask() -> Iterator[None]:
    redaction.set_mask(lambda value: json.loads(json.dumps(value).replace("Ada", "[name]")))
    yield
    redaction.set_mask(None)


def test_a_masked_message_marks_every_call_that_repeats_it_and_no_other(
    client: Any, captured: Captured, mask: None
) -> None:
    @art.trajectory
    def handle() -> None:
        ask(client, [user("hello"), user("I am Ada")])
        ask(client, [user("hello")])
        ask(client, [user("I am Ada"), user("hello")])

    handle()
    first, second, third = captured().spans[1:]
    assert [call.attributes.get("art.masked") for call in (first, second, third)] == [True, None, True]
    assert third.attributes["gen_ai.input.messages"][0]["parts"][0]["content"] == "I am [name]"


def test_an_image_sent_in_many_calls_is_kept_whole_and_once(client: Any, captured: Captured, home: Path) -> None:
    data = "iVBORw0KGgo" + "A" * 3_000_000 + "=="
    picture = user(
        [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
    )

    @art.trajectory
    def handle() -> None:
        history = [picture]
        for turn in range(6):
            history = [*history, user(f"turn {turn}")]
            ask(client, history)

    handle()
    run = captured()
    for span in run.spans[1:]:
        blob = span.attributes["gen_ai.input.messages"][0]["parts"][1]
        assert blob == {"type": "blob", "mime_type": "image/png", "content": data}
    assert sum(file.stat().st_size for file in home.glob("art.db*")) < 2.6 * len(data)  # with the write-ahead log


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model": "m", "messages": [{"role": "user", "content": "\ud800 lone"}], "temperature": 0.5}',
        b'{"model": "m", "messages": [{"role": "user", "content": NaN}], "temperature": 0.5}',
        b'{"model": "m", "messages": "hello", "temperature": 0.5}',
        b'{"model": "m", "temperature": 0.5, "input": 7, "tools": "none"}',
    ],
)
def test_json_that_is_odd_is_read_as_far_as_it_goes(body: bytes) -> None:
    read = wire.read_request("/chat/completions", body)
    assert read is not None
    assert read.attributes["gen_ai.request.temperature"] == 0.5
    for item in read.messages:
        assert item.read()["role"] == "user"


@pytest.mark.parametrize("body", [b"[]", b"7", b"{}", b'{"model": null}', b'{"messages": []}'])
def test_json_that_names_no_model_is_no_call(body: bytes) -> None:
    assert wire.read_request("/chat/completions", body) is None


def test_what_is_known_goes_with_the_trajectory(client: Any) -> None:
    @art.trajectory
    def handle() -> None:
        ask(client, [user("hi")])
        live = art.current_trajectory()
        assert isinstance(live, LiveTrajectory)
        known.append(live.said)
        assert len(known[0]) == 1

    known: list[Any] = []
    handle()
    assert known == [{}]
