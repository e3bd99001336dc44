"""Labelling and deleting: what is deleted is gone, and nothing that others hold."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import func, select

import art_sdk as art
from art_sdk.capture.records import Content
from art_sdk.store import Store, steps
from art_sdk.store import tables as t
from art_sdk.store.database import Database
from art_sdk.store.queue import claim
from art_sdk.store.reasons import Reason

from .build import call, completion, content, end, group, identity, on_sqlite, reward, start

Write = Callable[..., None]


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


def said(number: int, words: str) -> Content:
    """A message of a trajectory."""
    made = content({"role": "user", "parts": [{"type": "text", "content": words}]})
    return Content(made.hash, made.data, identity(number))


def spoken(write: Write, number: int, *words: str, **attributes: object) -> None:
    messages = [said(number, each) for each in words]
    asked = {"art.input.messages": [each.hash for each in messages]}
    write(*messages, start(number, **attributes), call(number, f"r{number}", **asked), end(number, **attributes))


def counts(database: Database) -> dict[str, int]:
    with database.read() as connection:
        tables = (t.trajectories, t.spans, t.rewards, t.completions, t.holdings, t.contents, t.groups, t.claims, t.tags)
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one() for table in tables
        }


def test_a_deleted_trajectory_takes_what_only_it_has(store: Store, write: Write) -> None:
    spoken(write, 1, "You are a desk.", "Where is copper-willow?")
    spoken(write, 2, "You are a desk.", "Where is maple-olive?")
    write(reward(1), completion(1, "r1"))
    with store.database.write() as connection:
        connection.execute(t.groups.update().values(status="ready"))
    store.tag(identity(1), "bad")
    store.delete(identity(1))
    assert [run.id for run in store.trajectories()] == [identity(2)]
    (left,) = store.trajectories()
    words = [message["parts"][0]["content"] for message in left.messages()]
    assert words == ["You are a desk.", "Where is maple-olive?"]
    assert counts(store.database) == {
        "trajectories": 1,
        "spans": 2,
        "rewards": 0,
        "completions": 0,
        "holdings": 2,
        "contents": 2,
        "groups": 1,
        "claims": 1,
        "tags": 0,
    }
    store.delete(identity(2))
    assert set(counts(store.database).values()) == {0}


def test_the_group_of_a_deleted_trajectory_stays_while_others_may_join_it(store: Store, write: Write) -> None:
    in_group = {"art.group.id": identity(100)}
    write(group(100, 2, time.time_ns()), start(1, **in_group), end(1, **in_group))
    store.delete(identity(1))
    write(start(2, **in_group), completion(2, "r2"), end(2, **in_group), reward(2))
    write(start(3, **in_group), completion(3, "r3"), end(3, **in_group), reward(3))
    (claimed,) = claim(store.database, "support", owner="worker", limit=1, lease_seconds=60)
    assert [member.trajectory_id for member in claimed.members] == [identity(2), identity(3)]


@on_sqlite
def test_no_byte_of_what_was_deleted_is_left_in_the_files(store: Store, write: Write) -> None:
    spoken(write, 1, "the secret is tangerine-dreams")
    spoken(write, 2, "nothing of note")
    files = [file for file in Path(store.database.url.removeprefix("sqlite:///")).parent.iterdir() if file.is_file()]
    assert any(b"tangerine-dreams" in file.read_bytes() for file in files)
    store.delete(identity(1))
    assert not any(b"tangerine-dreams" in file.read_bytes() for file in files)
    assert [run.id for run in store.trajectories(text="nothing of note")] == [identity(2)]


def test_what_runs_or_is_trained_on_is_left_and_said(store: Store, write: Write) -> None:
    now = time.time_ns()
    in_group = {"art.group.id": identity(100)}
    write(start(1), group(100, 1, now), start(2, **in_group), end(2, **in_group), reward(2), completion(2, "r2"))
    write(start(3), end(3, "failed"))
    steps.register_policy(store.database, "support", "base")
    (claimed,) = claim(store.database, "support", owner="worker", limit=1, lease_seconds=60)
    assert [m.trajectory_id for m in claimed.members] == [identity(2)]
    for number in (1, 2):
        with pytest.raises(art.StoreError, match="still runs, or a worker is training on its group"):
            store.delete(identity(number))
    deleted = store.prune(until=datetime.now(UTC))
    assert (deleted.trajectories, deleted.busy) == (1, 2)
    assert {run.id for run in store.trajectories()} == {identity(1), identity(2)}


def test_prune_spares_what_has_a_reward_and_needs_a_filter(store: Store, write: Write) -> None:
    write(start(1), end(1), reward(1), start(2), end(2))
    with pytest.raises(art.StoreError, match="without one it would delete everything"):
        store.prune()
    with pytest.raises(art.StoreError, match="without one it would delete everything"):
        store.prune(keep_rewarded=True, name=None)
    assert store.prune(keep_rewarded=True, until=datetime.now(UTC)).trajectories == 1
    assert [run.id for run in store.trajectories()] == [identity(1)]
    assert store.prune(name="another").trajectories == 0
    assert store.prune(name="desk").trajectories == 1


def test_tags_are_a_set_and_a_filter(store: Store, write: Write) -> None:
    write(start(1), end(1), start(2), end(2))
    store.tag(identity(1), "good", "checked")
    store.tag(identity(1), "good")
    store.untag(identity(1), "checked", "never given")
    assert store.trajectory(identity(1)).tags == ("good",)
    assert [run.id for run in store.trajectories(tag="good")] == [identity(1)]
    with pytest.raises(art.StoreError, match="must not be empty"):
        store.tag(identity(1), " ")


def test_a_reward_that_is_added_counts_like_any_other(store: Store, write: Write) -> None:
    in_group = {"art.group.id": identity(100)}
    write(group(100, 1, time.time_ns()), start(1, **in_group), completion(1, "r1"), end(1, **in_group))
    assert claim(store.database, "support", owner="worker", limit=1, lease_seconds=60) == []
    store.reward(identity(1), 0.25)
    store.reward(identity(1), 0.5, name="style", source="reviewer")
    assert store.trajectory(identity(1)).reward == 0.75
    assert [r["source"] for r in store.trajectory(identity(1)).rewards] == ["label", "reviewer"]
    (claimed,) = claim(store.database, "support", owner="worker", limit=1, lease_seconds=60)
    assert claimed.members[0].reward == 0.75


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1"])
def test_a_reward_that_is_no_number_is_refused(store: Store, write: Write, value: float) -> None:
    write(start(1), end(1))
    with pytest.raises(art.RewardError, match="finite number"):
        store.reward(identity(1), value)
    assert store.trajectory(identity(1)).reward is None


def test_what_is_excluded_is_not_trained_on_and_says_so(store: Store, write: Write) -> None:
    in_group = {"art.group.id": identity(100)}
    for number in (1, 2):
        write(start(number, **in_group), completion(number, f"r{number}"), end(number, **in_group), reward(number))
    store.exclude(identity(1))
    assert store.trajectory(identity(1)).standing == Reason.EXCLUDED
    write(group(100, 2, time.time_ns()))
    (claimed,) = claim(store.database, "support", owner="worker", limit=1, lease_seconds=60)
    assert [member.trajectory_id for member in claimed.members] == [identity(2)]
    store.exclude(identity(1), excluded=False)
    assert store.trajectory(identity(1)).standing != Reason.EXCLUDED


@pytest.mark.parametrize("change", ["reward", "tag", "exclude", "delete"])
def test_a_trajectory_that_is_not_there_is_named(store: Store, change: str) -> None:
    arguments = {"reward": (1.0,), "tag": ("good",)}.get(change, ())
    with pytest.raises(art.StoreError, match=f"no trajectory in .*{identity(7)}"):
        getattr(store, change)(identity(7), *arguments)
    with pytest.raises(art.StoreError, match=r"no group in .* has the id"):
        store.prioritize(identity(7), 1)


def test_words_are_found_in_messages_whatever_their_case(store: Store, write: Write) -> None:
    for number, words in ((1, 'Where is "copper-willow"?'), (2, "ÄRGER\nmit der Bestellung " * 30), (3, "fine")):
        spoken(write, number, words)
    for words, found in (('"COPPER', [1]), ("ärger\nmit", [2]), ('WHERE IS "', [1]), ("nowhere", [])):
        assert [int(run.id, 16) for run in store.trajectories(text=words)] == found
    assert len(list(store.trajectories(text="e", limit=2))) == 2


def test_pages_end_where_the_next_begins(store: Store, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art_sdk.store.store._PAGE", 3)
    for number in range(1, 12):  # four begin at each moment
        write(msgspec.structs.replace(start(number), started_at=number // 4))
    assert [int(run.id, 16) for run in store.trajectories()] == list(range(11, 0, -1))
    assert [int(run.id, 16) for run in store.trajectories(limit=7)] == list(range(11, 4, -1))
