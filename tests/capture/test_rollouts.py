"""`art.rollouts`: groups of runs, in order, whatever the runs do."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

import art_sdk as art
from art_sdk.store import Store
from art_sdk.store import tables as t

Stored = Callable[[], Store]


async def test_an_async_function_runs_group_size_times_for_each_task(stored: Stored) -> None:
    @art.trajectory
    async def handle(task: int) -> int:
        await asyncio.sleep(0.01 * (3 - task))
        art.reward(task)
        return task * 10

    groups = await art.rollouts(handle, [1, 2, 3], group_size=4)
    assert [group.task for group in groups] == [1, 2, 3]
    assert [[run.result for run in group.rollouts] for group in groups] == [[10] * 4, [20] * 4, [30] * 4]
    assert [group.rewards for group in groups] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    store = stored()
    for group in groups:
        found = {run.id for run in store.trajectories() if run.group_id == group.id}
        assert found == {run.trajectory_id for run in group.rollouts}
    with store.database.read() as connection:
        rows = connection.execute(select(t.groups.c.size, t.groups.c.status, t.groups.c.task_key)).all()
    assert list(map(tuple, rows)) == [(4, "ready", None)] * 3


async def test_a_sync_function_runs_in_threads_at_the_same_time(stored: Stored) -> None:
    barrier = threading.Barrier(3)

    @art.trajectory
    def handle(task: str) -> str:
        barrier.wait(5)
        assert threading.current_thread() is not threading.main_thread()
        art.reward(1.0)
        return task

    (group,) = await art.rollouts(handle, ["a"], group_size=3, concurrency=3)
    assert [run.error for run in group.rollouts] == [None] * 3
    assert {run.group_id for run in stored().trajectories()} == {group.id}


async def test_no_more_than_concurrency_run_at_a_time(stored: Stored) -> None:
    running = most = 0

    @art.trajectory
    async def handle(task: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    await art.rollouts(handle, range(5), group_size=2, concurrency=3)
    assert most == 3


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_run_that_raises_stops_no_other(stored: Stored, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    fault = ValueError("odd")

    def run(task: int) -> int:
        if task % 2:
            raise fault
        art.reward(1.0)
        return task

    if kind == "sync":
        handle: Any = art.trajectory(run)
    else:

        @art.trajectory
        async def handle(task: int) -> int:
            return run(task)

    groups = await art.rollouts(handle, [0, 1], group_size=2)
    assert [[run.error for run in group.rollouts] for group in groups] == [[None, None], [fault, fault]]
    assert [[run.reward for run in group.rollouts] for group in groups] == [[1.0, 1.0], [None, None]]
    assert groups[1].rewards == []
    assert "2 of 4 rollouts failed; the first: ValueError('odd')" in caplog.text
    assert sorted(run.status for run in stored().trajectories()) == ["failed", "failed", "finished", "finished"]


async def test_a_run_that_cancels_itself_stops_no_other(stored: Stored) -> None:
    @art.trajectory
    async def handle(task: int) -> int:
        if task == 1:
            raise asyncio.CancelledError
        return task

    groups = await art.rollouts(handle, [0, 1, 2], group_size=1)
    assert [group.rollouts[0].result for group in groups] == [0, None, 2]
    assert isinstance(groups[1].rollouts[0].error, asyncio.CancelledError)


async def test_cancelling_the_rollouts_cancels_every_run(stored: Stored) -> None:
    begun = 0

    @art.trajectory
    async def handle(task: int) -> None:
        nonlocal begun
        begun += 1
        await asyncio.sleep(60)

    running = asyncio.create_task(art.rollouts(handle, [1], group_size=3))
    while begun < 3:
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [run.status for run in stored().trajectories()] == ["cancelled"] * 3


async def test_the_reward_of_a_rollout_is_the_one_in_the_store(stored: Stored) -> None:
    @art.trajectory(reward=lambda result, task: 0.5)
    async def handle(task: str) -> None:
        art.reward(1.0, key="k")
        art.reward(7.0, key="k")

    (group,) = await art.rollouts(handle, ["a"], group_size=1)
    (run,) = stored().trajectories()
    assert group.rollouts[0].reward == run.reward == 1.5


async def test_train_false_marks_runs_as_not_for_training(stored: Stored) -> None:
    @art.trajectory
    async def handle(task: int) -> None: ...

    await art.rollouts(handle, [1], group_size=2, train=False)
    assert [run.train for run in stored().trajectories()] == [False, False]


async def test_a_decorated_function_called_by_a_run_is_none_of_the_groups(stored: Stored) -> None:
    @art.trajectory(name="inner")
    async def inner() -> None: ...

    @art.trajectory(name="outer")
    async def outer(task: int) -> None:
        await inner()

    (group,) = await art.rollouts(outer, [1], group_size=2, train=False)
    store = stored()
    assert {run.group_id for run in store.trajectories(name="outer")} == {group.id}
    assert group.id not in {run.group_id for run in store.trajectories(name="inner")}
    assert {run.train for run in store.trajectories(name="inner")} == {True}


async def test_methods_can_be_rolled_out(stored: Stored) -> None:
    class Agent:
        @art.trajectory
        async def handle(self, task: int) -> int:
            return task

    groups = await art.rollouts(Agent().handle, [1, 2], group_size=1)
    assert [group.rollouts[0].result for group in groups] == [1, 2]


async def test_an_undecorated_function_is_refused() -> None:
    with pytest.raises(art.ConfigError, match=r"decorated with @art.trajectory, got <built-in function len>"):
        await art.rollouts(len, ["a"])


@pytest.mark.parametrize("option", ["group_size", "concurrency"])
async def test_a_number_below_1_is_refused(option: str) -> None:
    @art.trajectory
    async def handle(task: int) -> None: ...

    with pytest.raises(art.ConfigError, match=rf"art.rollouts\({option}=0\): expected at least 1"):
        await art.rollouts(handle, [1], **{option: 0})


async def test_no_tasks_make_no_groups(home: Any) -> None:
    @art.trajectory
    async def handle(task: int) -> None: ...

    assert await art.rollouts(handle, []) == []


def test_the_sync_twin_needs_no_event_loop(stored: Stored) -> None:
    @art.trajectory
    def handle(task: int) -> int:
        time.sleep(0.001)
        return task

    groups = art.rollouts_sync(handle, [3, 1], group_size=2)
    assert [[run.result for run in group.rollouts] for group in groups] == [[3, 3], [1, 1]]


async def test_the_sync_twin_inside_an_event_loop_says_what_to_do() -> None:
    @art.trajectory
    def handle(task: int) -> None: ...

    with pytest.raises(art.ConfigError, match=r"inside a running event loop: use `await art.rollouts"):
        art.rollouts_sync(handle, [1])


async def test_rollouts_run_without_a_journal(home: Any) -> None:
    (home / "journal").write_text("a file where the folder should be")

    @art.trajectory
    async def handle(task: int) -> int:
        art.reward(1.0)
        return task

    (group,) = await art.rollouts(handle, [1], group_size=2)
    assert [run.result for run in group.rollouts] == [1, 1]
    assert group.rewards == [1.0, 1.0]


async def test_the_priority_of_rollouts_is_their_groups(stored: Stored) -> None:
    @art.trajectory
    def handle(task: int) -> None: ...

    await art.rollouts(handle, [1], group_size=1, priority=3)
    with stored().database.read() as connection:
        assert connection.execute(select(t.groups.c.priority)).scalars().all() == [3]


async def test_a_groups_deadline_runs_from_its_own_beginning(stored: Stored) -> None:
    """Not from that of all: with many tasks it would pass before the last ones begin."""

    @art.trajectory
    def handle(task: int) -> None:
        time.sleep(0.05)

    groups = await art.rollouts(handle, [1, 2, 3], group_size=1, concurrency=1)
    with stored().database.read() as connection:
        deadlines = dict(tuple(row) for row in connection.execute(select(t.groups.c.id, t.groups.c.deadline)))
    first, second, third = (deadlines[each.id] for each in groups)
    assert second - first > 0.04e9
    assert third - second > 0.04e9
