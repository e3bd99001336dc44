"""One run of an agent: a trajectory from its first line of code to what it returned, yielded or raised.

`begin` and `end` are all that a way in has to call. Neither raises: what fails costs the record of the
run, never the run.
"""

import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any

import msgspec
from opentelemetry import context as otel_context

from ..settings import get_settings
from . import spans
from .content import clean, plain
from .guard import guarded
from .rewards import give
from .spans import LiveTrajectory

log = logging.getLogger("art_sdk.capture")

_SLOT_KEY = otel_context.create_key("art-sdk-slot")


@dataclass(frozen=True)
class Slot:
    """What `art.rollouts` tells the trajectory that it is about to start, and learns from it."""

    group_id: str | None
    train: bool
    started: list[LiveTrajectory]


def slot_context(slot: Slot | None) -> otel_context.Context:
    return otel_context.set_value(_SLOT_KEY, slot)


@dataclass(frozen=True)
class Options:
    """What the decorator was given."""

    name: str
    policy: str | None = None
    reward: Callable[..., Any] | None = None
    metadata: Mapping[str, Any] | None = None
    capture_input: bool = True
    group: str | Callable[..., Any] | None = None


def begin(options: Options, inputs: Mapping[str, Any], *, key: Any = None) -> LiveTrajectory:
    """Start a trajectory. `key` stands for its task instead of `inputs`, the arguments that the function got."""
    slot: Slot | None = otel_context.get_value(_SLOT_KEY)  # type: ignore[assignment]
    # What fails here costs the record of this run; art.reward() in its body works as ever.
    live = guarded(_start, options, slot, inputs, key) or spans.lost_root(options.name)
    if slot:
        slot.started.append(live)
    return live


def current(live: LiveTrajectory) -> AbstractContextManager[None]:
    """Make a trajectory current while a part of its code runs."""
    # The slot is for this trajectory alone: a decorated function called inside is none of the group's.
    return spans.attached(otel_context.set_value(_SLOT_KEY, None, spans.trajectory_context(live)))


def _start(options: Options, slot: Slot | None, inputs: Mapping[str, Any], key: Any) -> LiveTrajectory | None:
    settings = get_settings()
    parent = spans.current_trajectory()
    if settings.off:
        _say_off(settings.disabled)
        return None
    if not _sampled(settings.sample_rate, slot, parent):
        return None
    given = plain(dict(inputs))
    attributes: dict[str, Any] = {
        spans.TRAJECTORY_NAME: options.name,
        spans.TASK_KEY: _task_key(options.name, given if key is None else ["group", plain(key)]),
        spans.TRAIN: slot.train if slot else True,
        spans.AGENT_NAME: options.name,
    }
    if policy := options.policy or settings.policy:
        attributes[spans.POLICY] = policy
    if slot and slot.group_id:
        attributes[spans.GROUP_ID] = slot.group_id
    if parent is not None:
        attributes[spans.PARENT_TRAJECTORY] = parent.id
    if options.metadata:
        attributes |= spans.metadata_attributes(options.metadata)
    return spans.start_root(options.name, attributes, given if options.capture_input else _NOT_CAPTURED)


@cache
def _say_off(disabled: bool | None) -> None:
    if disabled is None:
        log.warning("OTEL_SDK_DISABLED is set: nothing is captured and nothing can be learned; ART_DISABLED=0 captures")


_NOT_CAPTURED = {"omitted": "capture_input=False"}


def _sampled(rate: float, slot: Slot | None, parent: LiveTrajectory | None) -> bool:
    """A trajectory is captured whole or not at all, and its sub-trajectories with it. Rollouts always are: somebody
    asked for them."""
    if parent is not None:
        return parent.open
    return slot is not None or rate >= 1 or int.from_bytes(os.urandom(4)) < rate * (1 << 32)


def _task_key(name: str, task: Any) -> str:
    """The same function with the same inputs is the same task (BLAKE2b, 16 bytes, hex)."""
    return hashlib.blake2b(msgspec.json.encode([clean(name), task]), digest_size=16).hexdigest()


def end(live: LiveTrajectory, result: Any = None) -> None:
    """End a trajectory whose function returned `result`.

    Where that is an answer which the program is still reading, such as a client's stream, the trajectory ends when
    it has been read.
    """
    if not live.streams or _is_data(result):
        _close(live, result)
        return
    described = guarded(plain, result)  # and not the result itself, which would never be let go of unread
    live.when_read = lambda: _close(live, described)
    if not live.streams:
        _close(live, described)


def fail(live: LiveTrajectory, error: BaseException) -> None:
    """End a trajectory whose function raised, or was left, with `error`."""
    if not live.open:
        return
    # Whoever sees a graph wait may stop listening then; any other error is how the run ended.
    waits = spans.is_interrupt(error) or (live.status == "interrupted" and spans.is_cancel(error))
    live.root.set_attribute(spans.STATUS, "interrupted" if waits else "failed")
    if not waits:
        guarded(spans.fail, live.root, error)
    _end_root(live)


def _close(live: LiveTrajectory, result: Any) -> None:
    if not live.open:
        return
    found = guarded(spans.content_attributes, live, {spans.OUTPUT: result}) or {}
    live.root.set_attributes(found | {spans.STATUS: live.status or "finished"})
    _end_root(live)


def _end_root(live: LiveTrajectory) -> None:
    if live.process == os.getpid():
        with suppress(KeyError):  # until it is empty; what ends meanwhile in another thread leaves it
            while True:
                guarded(live.at_end.popitem()[1])
        live.open = False
        guarded(live.root.end)
    live.open = False  # a forked child has a copy: the trajectory is its parent's to end
    live.at_end.clear()
    live.said.clear()  # contexts that libraries keep may hold the trajectory for longer


def _is_data(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, str | bytes | int | float | dict | list | tuple)
        or is_dataclass(value)
        or hasattr(type(value), "model_fields")  # pydantic
    )


def judge(live: LiveTrajectory, reward: Callable[..., Any], result: Any, args: Any, kwargs: Any) -> None:
    """Give what the `reward` function says; what it raises costs the trajectory its reward and the caller nothing."""
    with _reward_errors(live):
        give(live, reward(result, *args, **kwargs), name="reward")


async def judge_async(live: LiveTrajectory, reward: Callable[..., Any], result: Any, args: Any, kwargs: Any) -> None:
    """`judge`, for a `reward` that may be async."""
    with _reward_errors(live):
        value = reward(result, *args, **kwargs)
        give(live, await value if inspect.isawaitable(value) else value, name="reward")


class _reward_errors:
    def __init__(self, live: LiveTrajectory) -> None:
        self._live = live

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        guarded(spans.note_error, self._live.root, spans.REWARD_ERROR, error)
        log.error(
            "trajectory %s (%s) has no reward: its reward function raised",
            self._live.id,
            self._live.name,
            exc_info=error,
        )
        return True


def begin_auto(name: str, inputs: Any) -> LiveTrajectory | None:
    """Zero code: start a trajectory for an agent run that is in none. None where that is not asked for."""
    if not get_settings().auto or spans.place() is not None:
        return None
    live = begin(Options(name), inputs if isinstance(inputs, Mapping) else {"input": inputs})
    return live if live.open else None


def end_auto(live: LiveTrajectory, result: Any = None, error: BaseException | None = None) -> None:
    """End what `begin_auto` started."""
    if error is None:
        end(live, result)
    else:
        fail(live, error)
