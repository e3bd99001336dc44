"""Groups become ready, are claimed by one worker at a time, and are done once."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import select, update

from art_sdk.capture import spans as names
from art_sdk.store import Store
from art_sdk.store import tables as t
from art_sdk.store.database import Database
from art_sdk.store.queue import (
    LeaseLost,
    MemberState,
    Readiness,
    claim,
    finish_claims,
    queued,
    readiness,
    release,
    renew,
)
from art_sdk.store.reasons import Reason
from art_sdk.store.story import counts, story

from .build import SECOND, call, completion, end, group, identity, reward, start

Write = Callable[..., None]

DONE = MemberState("finished", rewarded=True, awaiting=0)
RUNNING = MemberState("running", rewarded=True, awaiting=0)
UNREWARDED = MemberState("finished", rewarded=False, awaiting=0)
AWAITING = MemberState("finished", rewarded=True, awaiting=1)
FAILED = MemberState("failed", rewarded=False, awaiting=2)
CANCELLED = MemberState("cancelled", rewarded=False, awaiting=0)
ABANDONED = MemberState("abandoned", rewarded=False, awaiting=0)


# The rule


@pytest.mark.parametrize(
    ("members", "options", "expected"),
    [
        # announced: all of them, settled
        ([DONE, DONE], {}, Readiness("ready", None)),
        ([DONE], {}, Readiness("open", 100)),
        ([], {}, Readiness("open", 100)),
        ([DONE, RUNNING], {}, Readiness("open", 100)),
        ([DONE, UNREWARDED], {}, Readiness("open", 100)),
        ([DONE, AWAITING], {}, Readiness("open", 100)),
        ([DONE, FAILED], {}, Readiness("ready", None)),
        ([CANCELLED, ABANDONED], {}, Readiness("ready", None)),
        ([DONE, DONE, DONE], {}, Readiness("ready", None)),
        # the deadline ends all waiting
        ([DONE, RUNNING], {"now": 99}, Readiness("open", 100)),
        ([DONE, RUNNING], {"now": 100}, Readiness("ready", None)),
        ([], {"now": 101}, Readiness("open", 101 + 60_000_000_000)),
        ([], {"now": 100 + (1 << 40)}, Readiness("open", 100 + (2 << 40))),
        ([RUNNING], {"now": 101}, Readiness("ready", None)),
        # derived: full, or closed
        ([DONE], {"closes_at": 20}, Readiness("open", 20)),
        ([DONE, DONE], {"closes_at": 20}, Readiness("ready", None)),
        ([DONE], {"closes_at": 20, "now": 20}, Readiness("ready", None)),
        ([DONE], {"closes_at": 20, "now": 50}, Readiness("ready", None)),
        ([UNREWARDED], {"closes_at": 20, "now": 50}, Readiness("open", 100)),
        ([UNREWARDED], {"closes_at": 20, "now": 100}, Readiness("ready", None)),
    ],
)
def test_readiness(members: list[MemberState], options: dict[str, Any], expected: Readiness) -> None:
    given: dict[str, Any] = {"size": 2, "closes_at": None, "deadline": 100, "now": 10} | options
    assert readiness(members, **given) == expected


# Announced groups


def member(number: int, group_number: int = 90, status: str = "finished") -> list[Any]:
    attributes = {names.GROUP_ID: identity(group_number)}
    return [start(number, **attributes), end(number, status, **attributes)]


def ready_now(database: Database, policy: str = "support") -> int:
    return queued(database, policy, time.time_ns())


def test_an_announced_group_waits_for_all_its_members(database: Database, write: Write) -> None:
    write(group(90, 2, time.time_ns()))
    write(*member(1), reward(1))
    assert ready_now(database) == 0
    write(*member(2))
    assert ready_now(database) == 0
    write(reward(2))
    assert ready_now(database) == 1


def test_a_failed_member_holds_nobody_up(database: Database, write: Write) -> None:
    write(group(90, 2, time.time_ns()), *member(1), reward(1))
    write(*member(2, status="failed"))
    assert ready_now(database) == 1


def test_a_group_waits_for_the_completion_of_every_call_through_the_gateway(database: Database, write: Write) -> None:
    write(group(90, 1, time.time_ns()), call(1, "r1"), call(1, "r2"), *member(1), reward(1))
    assert ready_now(database) == 0
    write(completion(1, "r1"), journal="gateway-2")
    assert ready_now(database) == 0
    write(completion(1, "r2"), journal="gateway-2")
    assert ready_now(database) == 1


def test_a_call_that_did_not_go_through_the_gateway_is_not_waited_for(database: Database, write: Write) -> None:
    write(group(90, 1, time.time_ns()), call(1, "r1", model="gpt-5"), *member(1), reward(1))
    assert ready_now(database) == 1


def test_a_group_that_is_announced_last_is_ready_at_once(database: Database, write: Write) -> None:
    write(*member(1), reward(1))
    assert ready_now(database) == 0
    write(group(90, 1, time.time_ns()))
    assert ready_now(database) == 1


def test_after_the_deadline_a_group_is_used_as_it_is(database: Database, write: Write) -> None:
    now = time.time_ns()
    write(group(90, 3, now), *member(1), reward(1), group_deadline=5.0, now=now)
    assert queued(database, "support", now + 4 * SECOND) == 0
    assert queued(database, "support", now + 5 * SECOND) == 1


def test_runs_that_only_measure_are_queued_for_nobody(database: Database, write: Write) -> None:
    attributes = {names.GROUP_ID: identity(90), names.TRAIN: False}
    write(group(90, 1, time.time_ns()), start(1, **attributes), end(1, **attributes), reward(1))
    assert ready_now(database) == 0


def test_a_group_that_two_policies_answered_is_queued_for_both(database: Database, write: Write) -> None:
    now = time.time_ns()
    write(group(90, 1, now), completion(1, "r1"), completion(1, "r2", policy="writer"), *member(1), reward(1))
    assert (ready_now(database, "support"), ready_now(database, "writer"), ready_now(database, "none")) == (1, 1, 0)
    (claimed,) = claim(database, "writer", owner="w", limit=9, lease_seconds=60)
    assert [c.response_id for c in claimed.members[0].completions] == ["r2"]
    assert ready_now(database, "support") == 1


# Groups of ordinary traffic


def traffic(number: int, key: int = 7) -> list[Any]:
    attributes = {names.TASK_KEY: identity(key)}
    return [start(number, **attributes), end(number, **attributes), reward(number)]


def groups_of(database: Database) -> dict[int, str]:
    with database.read() as connection:
        rows = connection.execute(select(t.trajectories.c.id, t.trajectories.c.group_id)).all()
    return {int(row.id, 16): row.group_id for row in rows}


def test_runs_of_one_task_gather_until_the_group_closes(database: Database, write: Write) -> None:
    now = time.time_ns()
    write(*traffic(1), now=now)
    write(*traffic(2), *traffic(3, key=8), now=now + SECOND)
    write(*traffic(4), now=now + 3 * SECOND)
    found = groups_of(database)
    assert found[1] == found[2]
    assert len({found[1], found[3], found[4]}) == 3
    assert queued(database, "support", now + 3 * SECOND) == 2
    assert queued(database, "support", now + 6 * SECOND) == 3


def test_a_full_group_is_ready_at_once_and_the_next_run_begins_another(database: Database, write: Write) -> None:
    now = time.time_ns()
    for number in (1, 2, 3):
        write(*traffic(number), group_size=2, now=now)
    found = groups_of(database)
    assert found[1] == found[2] != found[3]
    assert queued(database, "support", now) == 1


def test_a_group_of_one_need_not_wait(database: Database, write: Write) -> None:
    now = time.time_ns()
    write(*traffic(1), group_size=1, now=now)
    assert queued(database, "support", now) == 1


def test_runs_without_a_task_key_are_groups_of_their_own(database: Database, write: Write) -> None:
    write(start(1), end(1), start(2), end(2))
    assert len(set(groups_of(database).values())) == 2


def test_the_deadline_of_ordinary_traffic_ends_the_wait_for_a_late_reward(database: Database, write: Write) -> None:
    now = time.time_ns()
    attributes = {names.TASK_KEY: identity(7)}
    write(end(1, **attributes), now=now, group_deadline=100.0)
    assert queued(database, "support", now + 99 * SECOND) == 0
    assert queued(database, "support", now + 100 * SECOND) == 1


# Claims


@pytest.fixture
def five(write: Write) -> None:
    """Five ready groups of one member each."""
    now = time.time_ns()
    for number in range(1, 6):
        write(
            group(90 + number, 1, now), *member(number, 90 + number), reward(number), completion(number, f"r{number}")
        )


def expire(database: Database) -> None:
    """Let all leases have run out."""
    with database.write() as connection:
        connection.execute(update(t.claims).where(t.claims.c.expires_at.is_not(None)).values(expires_at=1))


def test_a_call_with_masked_content_is_left_out_of_what_is_trained_on(database: Database, write: Write) -> None:
    masked = msgspec.structs.replace(completion(1, "r1"), span_id=b"r1".hex().zfill(16))
    kept = msgspec.structs.replace(completion(1, "r2"), span_id=b"r2".hex().zfill(16))
    alone = msgspec.structs.replace(completion(2, "r3"), span_id=b"r3".hex().zfill(16))
    write(group(90, 2, time.time_ns()), *member(1), *member(2), reward(1), reward(2))
    write(call(1, "r1", **{names.MASKED: True}), call(1, "r2"), call(2, "r3", **{names.MASKED: True}))
    write(masked, kept, alone, journal="gateway-2")
    (claimed,) = claim(database, "support", owner="a", limit=1, lease_seconds=60)
    assert [[c.response_id for c in m.completions] for m in claimed.members] == [["r2"], []]
    assert [m.masked for m in claimed.members] == [False, True]


@pytest.mark.usefixtures("five")
def test_a_claim_hands_over_members_with_their_completions_oldest_first(database: Database) -> None:
    first, second = claim(database, "support", owner="a", limit=2, lease_seconds=60)
    assert [first.group_id, second.group_id] == [identity(91), identity(92)]
    (only,) = first.members
    assert (only.trajectory_id, only.name, only.status, only.reward) == (identity(1), "desk", "finished", 1.0)
    assert only.completions == (completion(1, "r1"),)
    assert ready_now(database) == 3
    assert claim(database, "other", owner="a", limit=9, lease_seconds=60) == []


@pytest.mark.usefixtures("five")
def test_a_claim_tells_what_single_spans_were_given(database: Database, write: Write) -> None:
    write(
        *(
            msgspec.structs.replace(reward(number, value, key), span_id=span)
            for number, value, key, span in ((1, 0.5, 7, "a" * 16), (1, 0.25, 8, "a" * 16), (1, 1.0, 9, "b" * 16))
        )
    )
    first, second = claim(database, "support", owner="a", limit=2, lease_seconds=60)
    assert first.members[0].span_rewards == {"a" * 16: 0.75, "b" * 16: 1.0}
    assert first.members[0].reward == 2.75
    assert second.members[0].span_rewards == {}


@pytest.mark.usefixtures("five")
def test_a_claimed_group_comes_back_when_its_lease_runs_out(database: Database) -> None:
    assert len(claim(database, "support", owner="a", limit=9, lease_seconds=60)) == 5
    assert claim(database, "support", owner="b", limit=9, lease_seconds=60) == []
    expire(database)
    assert len(claim(database, "support", owner="b", limit=9, lease_seconds=60)) == 5


@pytest.mark.usefixtures("five")
def test_a_renewed_lease_lasts(database: Database) -> None:
    claim(database, "support", owner="a", limit=9, lease_seconds=60)
    expire(database)
    renew(database, "support", owner="a", lease_seconds=60)
    assert claim(database, "support", owner="b", limit=9, lease_seconds=60) == []


@pytest.mark.usefixtures("five")
def test_released_groups_can_be_claimed_at_once(database: Database) -> None:
    claim(database, "support", owner="a", limit=2, lease_seconds=60)
    claim(database, "support", owner="b", limit=1, lease_seconds=60)
    release(database, "support", owner="a")
    assert ready_now(database) == 4


@pytest.mark.usefixtures("five")
def test_finished_groups_are_never_claimed_again(database: Database) -> None:
    claimed = claim(database, "support", owner="a", limit=9, lease_seconds=60)
    with database.write() as connection:
        finish_claims(connection, "support", owner="a", group_ids=[c.group_id for c in claimed], step=1)
    expire(database)
    release(database, "support", owner="a")
    assert claim(database, "support", owner="b", limit=9, lease_seconds=60) == []


@pytest.mark.usefixtures("five")
def test_who_lost_a_lease_cannot_finish_and_nothing_is_marked(database: Database) -> None:
    claimed = claim(database, "support", owner="a", limit=2, lease_seconds=60)
    expire(database)
    claim(database, "support", owner="b", limit=1, lease_seconds=60)
    ids = [c.group_id for c in claimed]
    with (
        pytest.raises(LeaseLost, match="1 of 2 groups are no longer leased to this worker"),
        database.write() as connection,
    ):
        finish_claims(connection, "support", owner="a", group_ids=ids, step=1)
    with database.read() as connection:
        assert "done" not in connection.execute(select(t.claims.c.status)).scalars().all()


def test_threads_never_claim_the_same_group(database: Database, write: Write) -> None:
    now = time.time_ns()
    for number in range(1, 31):
        write(group(100 + number, 1, now), *member(number, 100 + number), reward(number))
    taken: list[str] = []

    def work(owner: str) -> None:
        while found := claim(database, "support", owner=owner, limit=3, lease_seconds=60):
            taken.extend(c.group_id for c in found)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [identity(100 + number) for number in range(1, 31)]


@pytest.mark.slow
def test_processes_never_claim_the_same_group(database: Database, write: Write) -> None:
    now = time.time_ns()
    for number in range(1, 31):
        write(group(100 + number, 1, now), *member(number, 100 + number), reward(number))
    code = """
import sys
from art_sdk.store.database import Database
from art_sdk.store.queue import claim
database = Database(sys.argv[1])
sys.stdin.readline()
while found := claim(database, "support", owner=sys.argv[2], limit=3, lease_seconds=60):
    for group in found:
        print(group.group_id)
"""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, database.url, owner],
            env=dict(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for owner in "ab"
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    taken = [line for worker in workers for line in worker.communicate(timeout=30)[0].split()]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sorted(taken) == [identity(100 + number) for number in range(1, 31)]


# What comes first


def queue_up(write: Write, number: int, *, priority: int = 0, version: int = 3, at: int | None = None) -> None:
    """A ready group of one, answered by a version."""
    in_group = {names.GROUP_ID: identity(100 + number)}
    announced = msgspec.structs.replace(group(100 + number, 1, time.time_ns()), priority=priority)
    answered = msgspec.structs.replace(completion(number, f"r{number}"), version=version)
    write(announced, start(number, **in_group), answered, end(number, **in_group), reward(number), now=at)


def order_of(database: Database, **options: Any) -> list[int]:
    """The numbers of the groups in the order in which one worker after another gets them."""
    found = []
    while claimed := claim(database, "support", owner=f"w{len(found)}", limit=1, lease_seconds=60, **options):
        found.append(int(claimed[0].group_id, 16) - 100)
    return found


def test_the_oldest_or_the_freshest_come_first_and_a_priority_before_either(database: Database, write: Write) -> None:
    now = time.time_ns()
    for number, (priority, version) in enumerate([(0, 5), (0, 7), (0, 6), (1, 2), (1, 4)], 1):
        queue_up(write, number, priority=priority, version=version, at=now + number)
    assert order_of(database, order="oldest") == [4, 5, 1, 2, 3]
    for owner in range(5):
        release(database, "support", owner=f"w{owner}")
    assert order_of(database, order="freshest") == [5, 4, 2, 3, 1]


def test_what_a_dead_worker_left_is_taken_first(database: Database, write: Write) -> None:
    queue_up(write, 1)
    claim(database, "support", owner="dead", limit=1, lease_seconds=60)
    expire(database)
    queue_up(write, 2, priority=9)
    assert order_of(database) == [1, 2]


def test_a_priority_that_is_given_later_counts(database: Database, write: Write) -> None:
    for number in (1, 2, 3):
        queue_up(write, number, at=time.time_ns() + number)
    Store(database).prioritize(identity(103), 1)
    assert order_of(database) == [3, 1, 2]


def test_groups_that_are_too_stale_are_set_aside_with_that_for_a_reason(database: Database, write: Write) -> None:
    for number, version in ((1, 2), (2, 3), (3, 4)):
        queue_up(write, number, version=version)
    assert order_of(database, oldest_version=3) == [2, 3]
    stale = Store(database).trajectory(identity(1))
    assert stale.standing == Reason.TOO_STALE
    assert [(o["step"], o["version"], o["tokens"]) for o in stale.outcomes] == [(None, None, 0)]
    assert "set aside for support, too_stale" in " ".join(event.what for event in story(database, stale))
    assert counts(database, "support").left_out == {Reason.TOO_STALE: 1}


def test_a_group_is_as_fresh_as_its_freshest_answer(database: Database, write: Write) -> None:
    queue_up(write, 1, version=2)
    in_group = {names.GROUP_ID: identity(102)}
    old, new = (msgspec.structs.replace(completion(2, f"r{v}"), version=v) for v in (1, 5))
    write(group(102, 1, time.time_ns()), start(2, **in_group), old, new, end(2, **in_group), reward(2))
    assert order_of(database, order="freshest", oldest_version=2) == [2, 1]


def test_counting_ends_where_it_is_enough(database: Database, write: Write) -> None:
    for number in range(1, 8):
        queue_up(write, number)
    assert queued(database, "support", time.time_ns()) == 7
    assert queued(database, "support", time.time_ns(), up_to=4) == 4
