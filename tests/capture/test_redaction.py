"""What must not be kept never reaches the disk, and the span that it was on says so."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as explore
from hypothesis import strategies as st

import art_sdk as art
from art_sdk import lifecycle, settings
from art_sdk.capture import guard, redaction
from art_sdk.capture.content import to_content
from art_sdk.store import Store

Stored = Callable[[], Store]

SECRETS = {
    "keys": [
        "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789",
        "sk-ant-api03-" + "a1B2" * 12,
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1B2c3D4" * 5,
        "xoxb-123456789012-abcdef",
        "AIzaSyA-" + "1234567890" * 3 + "ab",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9",
    ],
    "bearer": ["Bearer 0123456789abcdef0123456789", "bearer aB3.dE5-fG7_hI9~jK1+lM3/nO5="],
    "email": ["ann.lee+news@mail.example.co.uk"],
    "cards": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"],
}
HARMLESS = [
    "task-oriented",
    "the bearer of this letter",
    "risk-free",
    "at 12:00",
    "order 4111 1111 1111 1112",
    "1.41421356237309504880",
]


@pytest.fixture(autouse=True)
def unmasked() -> Any:
    yield
    redaction.set_mask(None)


@pytest.fixture
def everything(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_REDACT", "keys,bearer,email,cards")
    settings.reset()


def on_disk(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


@pytest.mark.parametrize("secret", [s for kind in SECRETS.values() for s in kind])
def test_a_secret_is_masked_wherever_it_stands(everything: None, secret: str) -> None:
    content, was_masked = to_content({"a": [f"use {secret} now", {secret: 1}]})
    assert was_masked
    for part in secret.splitlines():
        assert part not in content.data.decode()
    assert json.loads(content.data)["a"][0].startswith("use [")


def test_cards_in_a_row_are_masked_each(everything: None) -> None:
    assert redaction.redact_text("4111 1111 1111 1111 5500-0000-0000-0004 7") == "[card] [card] 7"


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_kept(everything: None, text: str) -> None:
    content, was_masked = to_content(text)
    assert (json.loads(content.data), was_masked) == (text, False)


@pytest.mark.parametrize("kind", SECRETS)
def test_each_kind_is_an_option(home: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for chosen in SECRETS:
        monkeypatch.setenv("ART_REDACT", chosen)
        settings.reset()
        assert to_content(SECRETS[kind][0])[1] == (kind == chosen)


def test_keys_and_bearer_tokens_are_masked_by_default_and_none_is_a_choice(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [kind for kind in SECRETS if to_content(SECRETS[kind][0])[1]] == ["keys", "bearer"]
    monkeypatch.setenv("ART_REDACT", "none")
    settings.reset()
    assert not any(to_content(SECRETS[kind][0])[1] for kind in SECRETS)


@explore(max_examples=100, deadline=None)
@given(st.text(), st.sampled_from([s for kind in SECRETS.values() for s in kind]), st.text())
def test_nothing_around_a_secret_hides_it(before: str, secret: str, after: str) -> None:
    os.environ["ART_REDACT"] = "keys,bearer,email,cards"
    settings.reset()
    try:
        text = f"{before} {secret} {after}"
        assert secret not in redaction.redact_text(text)
    finally:
        del os.environ["ART_REDACT"]
        settings.reset()


def agent(word: str) -> Any:
    @art.tool
    def look_up(order: str) -> str:
        return f"found {order}"

    @art.trajectory(metadata={"note": f"about {word}"})
    def handle(ticket: str) -> str:
        look_up(ticket)
        if "fail" in ticket:
            raise LookupError(f"no {ticket}")
        return f"done with {ticket}"

    return handle


def test_a_mask_function_sees_all_content_before_it_is_kept(stored: Stored, home: Path) -> None:
    lifecycle.init(mask=lambda value: json.loads(json.dumps(value).replace("Ann Lee", "***")))
    handle = agent("Ann Lee")
    handle("ticket of Ann Lee")
    with pytest.raises(LookupError, match="Ann Lee"):
        handle("fail Ann Lee")
    failed, done = stored().trajectories()
    assert done.input == {"ticket": "ticket of ***"}
    assert done.output == "done with ticket of ***"
    assert failed.error == "LookupError: no fail ***"
    assert done.details["metadata"] == {"note": "about ***"}
    assert [span.attributes.get("art.masked") for span in done.spans] == [True, True]
    assert b"Ann Lee" not in on_disk(home)


def test_spans_without_masked_content_are_not_marked(stored: Stored) -> None:
    lifecycle.init(mask=lambda value: "***" if value == "done with secret" else value)
    agent("x")("secret")
    (run,) = stored().trajectories()
    root, tool = run.spans
    assert (root.attributes.get("art.masked"), tool.attributes.get("art.masked")) == (True, None)


def test_a_mask_function_that_raises_lets_nothing_through(home: Path) -> None:
    def mask(value: Any) -> Any:
        raise KeyError("name")

    lifecycle.init(mask=mask)
    assert agent("x")("Ann Lee") == "done with Ann Lee"
    assert lifecycle.flush(10)
    assert guard.errors["mask"] > 0
    with art.open_store() as store:
        (run,) = store.trajectories()
        assert run.input == {"omitted": "the mask function raised KeyError"}
        assert run.spans[0].attributes["art.masked"]
    assert b"Ann Lee" not in on_disk(home)


def test_content_can_be_left_out_and_structure_stays(
    stored: Stored, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_CAPTURE_CONTENT", "0")
    settings.reset()
    agent("Ann Lee")("Ann Lee")
    with pytest.raises(LookupError):
        agent("Ann Lee")("fail Ann Lee")
    runs = list(stored().trajectories())
    assert [run.status for run in runs] == ["failed", "finished"]
    assert [span.name for span in runs[1].spans] == ["invoke_agent agent.handle", "execute_tool look_up"]
    assert runs[1].input == {"omitted": "content", "type": "dict", "size": 1}
    assert b"Ann Lee" not in on_disk(home)


@pytest.mark.parametrize(("said", "kept"), [("false", False), ("NO_CONTENT", False), ("true", True), ("", True)])
def test_opentelemetrys_own_content_switch_is_followed(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: str, kept: bool
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", said)
    settings.reset()
    assert (b"words" in to_content("words")[0].data) == kept
    monkeypatch.setenv("ART_CAPTURE_CONTENT", "1")
    settings.reset()
    assert b"words" in to_content("words")[0].data


@pytest.mark.parametrize("variable", ["ART_DISABLED", "OTEL_SDK_DISABLED"])
def test_switched_off_nothing_is_written_and_the_code_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "true")
    settings.reset()

    @art.trajectory
    def handle() -> str:
        art.reward(1.0)
        return art.current_trajectory().id

    art.reward(1.0, trajectory_id=handle())
    with pytest.raises(art.RewardError):
        art.reward(1.0)
    assert not list(home.rglob("*.journal"))


def test_art_disabled_0_captures_whatever_opentelemetrys_switch_says(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("ART_DISABLED", "0")
    settings.reset()
    agent("x")("y")
    assert len(list(stored().trajectories())) == 1


def test_suppressed_code_makes_no_spans(stored: Stored) -> None:
    from opentelemetry import context
    from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY

    from art_sdk.integrations.switch import here

    @art.trajectory
    def handle() -> None:
        assert here() is not None
        token = context.attach(context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))
        assert here() is None
        context.detach(token)

    handle()
    assert len(list(stored().trajectories())) == 1


def test_a_sample_is_of_whole_trajectories(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_SAMPLE_RATE", "0.5")
    settings.reset()

    @art.tool
    def step() -> None: ...

    @art.trajectory
    def inner() -> None:
        step()
        art.reward(1)

    @art.trajectory
    def outer() -> None:
        step()
        inner()

    for _ in range(100):
        outer()
    runs = list(stored().trajectories())
    inners = [run for run in runs if run.name.endswith("inner")]
    assert 20 <= len(inners) <= 80  # five standard deviations and more on either side
    assert {run.parent_id for run in inners} == {run.id for run in runs if run.name.endswith("outer")}
    assert all(len(run.spans) == 2 for run in runs)
    assert all(run.reward == 1 for run in inners)


def test_rollouts_are_captured_whatever_the_sample(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_SAMPLE_RATE", "0")
    settings.reset()

    @art.trajectory
    def handle(task: int) -> None:
        art.reward(task)

    handle(1)
    art.rollouts_sync(handle, [1, 2], group_size=2)
    assert len(list(stored().trajectories())) == 4


def test_only_the_owner_can_read_what_is_kept(stored: Stored, home: Path) -> None:
    agent("x")("y")
    stored()
    for path in [*home.rglob("*.journal"), *home.glob("art.db*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
