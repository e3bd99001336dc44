"""Every trajectory can say why it was trained on, or why not."""

import time
from collections.abc import Callable

import msgspec
import pytest

from art_sdk.capture import spans as names
from art_sdk.store import Store, steps
from art_sdk.store.batch import Outcome
from art_sdk.store.database import Database
from art_sdk.store.queue import claim
from art_sdk.store.reasons import Reason
from art_sdk.store.story import Counts, counts, story

from .build import call, completion, end, group, identity, reward, start

Write = Callable[..., None]


def told(database: Database, number: int = 1) -> list[str]:
    return [event.what for event in story(database, Store(database).trajectory(identity(number)))]


@pytest.fixture
def pair(database: Database, write: Write) -> None:
    """Two members of an announced group; the second has no reward yet."""
    now = time.time_ns()
    of_group = {names.GROUP_ID: identity(90)}
    steps.register_policy(database, "support", "base")
    write(group(90, 2, now), *(start(n, **of_group) for n in (1, 2)), now=now)
    write(*(call(n, f"r{n}") for n in (1, 2)), *(completion(n, f"r{n}") for n in (1, 2)), now=now)
    write(*(end(n, **of_group) for n in (1, 2)), reward(1, 0.5), now=now)


def step(database: Database, outcomes: list[Outcome], version: int | None) -> None:
    groups = claim(database, "support", owner="w", limit=9, lease_seconds=60)
    steps.record_step(
        database, "support", owner="w", groups=groups, outcomes=outcomes, metrics={}, started_at=1,
        version=version, path=None, note=None,
    )  # fmt: skip


@pytest.mark.usefixtures("pair")
def test_one_that_waits_says_for_what(database: Database) -> None:
    whole = "\n".join(told(database))
    assert whole.startswith("desk began\n")
    for part in (
        "support@3 answered, 1 completion with tokens",
        "reward 0.5 (reward, from code)",
        "finished after 1 s, 1 LLM call and 0 tool calls",
        f"in group {identity(90)}, 2 of 2 members, open",
        "its group waits, 1 of its members have no reward; until ",
    ):
        assert part in whole


@pytest.mark.usefixtures("pair")
def test_one_that_was_trained_on_names_step_tokens_and_version(database: Database, write: Write) -> None:
    write(reward(2, 0.0))
    assert "waits for a step of support" in told(database)
    claim(database, "support", owner="w", limit=9, lease_seconds=60)
    assert any(what.startswith("claimed for support by w until ") for what in told(database))
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE claims SET expires_at = 1")
    trained = [Outcome(identity(1), 2, advantage=0.25), Outcome(identity(2), 0, reason=Reason.NO_TOKENS)]
    step(database, trained, version=1)
    assert "step 1 of support trained on 2 tokens, advantage +0.25, and made support@1" in told(database)
    assert "support@1 is candidate" in told(database)
    assert f"step 1 of support left it out, no_tokens: {Reason.NO_TOKENS.meaning}" in told(database, 2)
    steps.make_live(database, "support", 1)
    assert told(database).count("support@1 went live") == 1
    write(msgspec.structs.replace(reward(1, 0.75, key=5), created_at=time.time_ns()))
    assert "that reward came after step 1 of support: it is kept, and was not used" in told(database)
    assert counts(database, "support") == Counts(1, 2, {Reason.NO_TOKENS: 1}, {})


@pytest.mark.usefixtures("pair")
def test_the_counts_of_a_policy(database: Database, write: Write) -> None:
    write(start(5, **{names.TRAIN: False}), end(5, **{names.TRAIN: False}))
    assert counts(database, "support") == Counts(0, 0, {Reason.EVALUATION: 1}, {"waiting": 2})
    write(reward(2))
    assert counts(database, "support").waiting == {"ready": 2}
    claim(database, "support", owner="w", limit=9, lease_seconds=60)
    assert counts(database, "support").waiting == {"leased": 2}
    assert counts(database, "other") == Counts(0, 0, {}, {})


def test_one_without_a_gateway_and_one_that_failed(database: Database, write: Write) -> None:
    write(start(1), end(1, "failed"))
    whole = "\n".join(told(database))
    assert "failed after 1 s, 0 LLM calls and 0 tool calls: ValueError: no" in whole
    assert "none of its calls went through a gateway" in whole


def test_every_reason_says_what_it_means() -> None:
    assert all(len(reason.meaning) > 10 and Reason(str(reason)) is reason for reason in Reason)


def test_times_are_in_order(database: Database, write: Write) -> None:
    write(start(1), end(1), reward(1, 1.0))
    at = [event.at for event in story(database, Store(database).trajectory(identity(1)))]
    known = [moment for moment in at if moment is not None]
    assert known == sorted(known)
    assert at[len(known) :] == [None] * (len(at) - len(known))
    assert len(known) == 3
