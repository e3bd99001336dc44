"""`art.rollouts`: run an agent several times on each task, as groups that are compared with each other."""

import asyncio
import inspect
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import ConfigError
from . import journal, spans
from .records import Group
from .runs import Slot, slot_context
from .trajectory import is_decorated

T = TypeVar("T")
log = logging.getLogger("art_sdk.rollouts")


@dataclass(frozen=True)
class Rollout(Generic[T]):
    """One run. `reward` is None where none was given, `error` is what the agent raised."""

    trajectory_id: str | None
    task: T
    result: Any
    error: BaseException | None
    reward: float | None


@dataclass(frozen=True)
class RolloutGroup(Generic[T]):
    """The runs of one task."""

    id: str
    task: T
    rollouts: tuple[Rollout[T], ...]

    @property
    def rewards(self) -> list[float]:
        return [rollout.reward for rollout in self.rollouts if rollout.reward is not None]


async def rollouts(
    function: Callable[..., Any],
    tasks: Iterable[T],
    *,
    group_size: int = 8,
    concurrency: int = 32,
    train: bool = True,
    priority: int = 0,
) -> list[RolloutGroup[T]]:
    """Run `function(task)` `group_size` times for each task and return the groups, in the order of `tasks`.

    Args:
        function: a function decorated with `@art.trajectory`; a sync one runs in threads.
        tasks: each is passed as the only argument.
        group_size: runs of each task; they form one group.
        concurrency: runs under way at a time.
        train: False to measure only: captured, never trained on.
        priority: groups with a higher one are trained on before those with a lower one.

    What a run raises is in its `Rollout.error` and stops no other run.

    Raises:
        ConfigError: `function` is not decorated, or a number is below 1.
    """
    _check(function, group_size, concurrency)
    groups = [(uuid.uuid4().hex, task) for task in tasks]
    announced: set[str] = set()
    limit = asyncio.Semaphore(concurrency)
    with ThreadPoolExecutor(concurrency, thread_name_prefix="art-rollout") as pool:

        async def one(group_id: str, task: T) -> Rollout[T]:
            async with limit:
                if group_id not in announced:  # now, not sooner: from here on its deadline runs
                    announced.add(group_id)
                    journal.append(Group(group_id, group_size, time.time_ns(), priority))
                slot = Slot(group_id, train, [])
                with spans.attached(slot_context(slot)):
                    if inspect.iscoroutinefunction(function):
                        result, error = await _outcome(function, task)
                    else:
                        context = copy_context()
                        loop = asyncio.get_running_loop()
                        result, error = await loop.run_in_executor(pool, context.run, _call, function, task)
                return _rollout(slot, task, result, error)

        runs = await asyncio.gather(*(one(group_id, task) for group_id, task in groups for _ in range(group_size)))
    return _collect(groups, runs, group_size)


def rollouts_sync(
    function: Callable[..., Any],
    tasks: Iterable[T],
    *,
    group_size: int = 8,
    concurrency: int = 32,
    train: bool = True,
    priority: int = 0,
) -> list[RolloutGroup[T]]:
    """`rollouts` for code that is not async.

    Raises:
        ConfigError: also where an event loop runs already, as in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigError("art.rollouts_sync() was called inside a running event loop: use `await art.rollouts(...)`")
    return asyncio.run(
        rollouts(function, tasks, group_size=group_size, concurrency=concurrency, train=train, priority=priority)
    )


def _check(function: Callable[..., Any], group_size: int, concurrency: int) -> None:
    if not is_decorated(function):
        raise ConfigError(f"art.rollouts needs a function decorated with @art.trajectory, got {function!r}")
    for name, value in (("group_size", group_size), ("concurrency", concurrency)):
        if value < 1:
            raise ConfigError(f"art.rollouts({name}={value}): expected at least 1")


async def _outcome(function: Callable[..., Any], task: Any) -> tuple[Any, BaseException | None]:
    try:
        return await function(task), None
    except Exception as error:
        return None, error
    except asyncio.CancelledError as error:  # the agent's own doing, unless we are being cancelled
        current = asyncio.current_task()
        if current is None or current.cancelling():
            raise
        return None, error


def _call(function: Callable[..., Any], task: Any) -> tuple[Any, BaseException | None]:
    try:
        return function(task), None
    except Exception as error:
        return None, error


def _rollout(slot: Slot, task: T, result: Any, error: BaseException | None) -> Rollout[T]:
    live = slot.started[0] if slot.started else None
    given = sum(live.rewards.values()) if live and live.rewards else None
    return Rollout(live.id if live else None, task, result, error, given)


def _collect(groups: list[tuple[str, T]], runs: list[Rollout[T]], size: int) -> list[RolloutGroup[T]]:
    failed = [run for run in runs if run.error is not None]
    if failed:
        log.warning("%d of %d rollouts failed; the first: %r", len(failed), len(runs), failed[0].error)
    return [
        RolloutGroup(group_id, task, tuple(runs[index * size : (index + 1) * size]))
        for index, (group_id, task) in enumerate(groups)
    ]
