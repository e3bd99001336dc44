"""`@art.trajectory`: one run of the decorated function is one trajectory.

The decorator opens a trace, makes it current while the function's body runs, and ends it with what
the function returned or raised. What the caller sees is the function's own doing: capture that
fails is logged once and the function runs on.
"""

import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

import msgspec
from opentelemetry import context as otel_context

from ..errors import ConfigError
from ..settings import get_settings
from . import spans
from .content import plain
from .guard import guarded
from .rewards import give
from .spans import LiveTrajectory

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("art_sdk.capture")

DECORATED = "__art_trajectory__"
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
class _Options:
    name: str
    policy: str | None
    reward: Callable[..., Any] | None
    metadata: Mapping[str, Any] | None
    signature: inspect.Signature


@overload
def trajectory(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def trajectory(
    *,
    name: str | None = None,
    policy: str | None = None,
    reward: Callable[..., Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def trajectory(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    policy: str | None = None,
    reward: Callable[..., Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Make every run of a function a trajectory.

    Args:
        name: what to call it; the function's own qualified name otherwise.
        policy: the policy that is to learn from it; `ART_POLICY` otherwise, and beyond that
            whichever policies the gateway answered its calls with.
        reward: called with the function's result and then its arguments, returns the reward
            (awaited where `function` is async too). What it raises is stored with the trajectory
            and never reaches the caller.
        metadata: kept with each trajectory.

    Raises:
        ConfigError: for what is not a plain sync or async function, or an async `reward` of a sync one.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isroutine(function) or isinstance(function, staticmethod | classmethod):
            raise ConfigError(
                f"@art.trajectory takes a function, got {function!r} (it stands below @staticmethod and @classmethod)"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"@art.trajectory on {function.__qualname__}: generator functions are not supported yet; "
                "decorate the function that consumes it"
            )
        is_async = inspect.iscoroutinefunction(function)
        if inspect.iscoroutinefunction(reward) and not is_async:
            raise ConfigError(
                f"@art.trajectory on {function.__qualname__}: an async reward function needs an async function"
            )
        from ..integrations import instrument_once

        instrument_once()
        options = _Options(
            name=name or function.__qualname__.replace("<locals>.", ""),
            policy=policy,
            reward=reward,
            metadata=metadata,
            signature=inspect.signature(function),
        )
        wrapper = _wrap_async(function, options) if is_async else _wrap(function, options)
        setattr(wrapper, DECORATED, options.name)
        return wrapper

    return decorate if function is None else decorate(function)


def _wrap(function: Callable[..., Any], options: _Options) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        live = _start(options, args, kwargs)
        with spans.attached(_body_context(live)):
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                _end(live, error=error)
                raise
            try:
                if options.reward is not None:
                    with _reward_errors(live):
                        give(live, options.reward(result, *args, **kwargs), name="reward")
            finally:
                _end(live, result=result)
        return result

    return run


def _wrap_async(function: Callable[..., Any], options: _Options) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        live = _start(options, args, kwargs)
        with spans.attached(_body_context(live)):
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                _end(live, error=error)
                raise
            try:
                if options.reward is not None:
                    with _reward_errors(live):
                        value = options.reward(result, *args, **kwargs)
                        give(live, await value if inspect.isawaitable(value) else value, name="reward")
            finally:
                _end(live, result=result)
        return result

    return run


def _body_context(live: LiveTrajectory) -> otel_context.Context:
    # The slot is for this trajectory alone: a decorated function called inside is none of the group's.
    return otel_context.set_value(_SLOT_KEY, None, spans.trajectory_context(live))


class _reward_errors:
    """A reward function that raises costs its trajectory the reward, and the caller nothing."""

    def __init__(self, live: LiveTrajectory) -> None:
        self._live = live

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        self._live.root.set_attribute(spans.REWARD_ERROR, spans.describe(error))
        log.error(
            "trajectory %s (%s) has no reward: its reward function raised",
            self._live.id,
            self._live.name,
            exc_info=error,
        )
        return True


def _start(options: _Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LiveTrajectory:
    slot: Slot | None = otel_context.get_value(_SLOT_KEY)  # type: ignore[assignment]
    # What fails here costs the record of this run; art.reward() in its body works as ever.
    live = guarded(_start_root, options, slot, args, kwargs) or spans.lost_root(options.name)
    if slot:
        slot.started.append(live)
    return live


def _start_root(options: _Options, slot: Slot | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LiveTrajectory:
    parent = spans.current_trajectory()
    inputs = _inputs(options.signature, args, kwargs)
    attributes: dict[str, Any] = {
        spans.TRAJECTORY_NAME: options.name,
        spans.TASK_KEY: _task_key(options.name, inputs),
        spans.TRAIN: slot.train if slot else True,
        spans.AGENT_NAME: options.name,
    }
    if policy := options.policy or get_settings().policy:
        attributes[spans.POLICY] = policy
    if slot and slot.group_id:
        attributes[spans.GROUP_ID] = slot.group_id
    if parent is not None:
        attributes[spans.PARENT_TRAJECTORY] = parent.id
    if options.metadata:
        attributes[spans.METADATA] = msgspec.json.encode(plain(dict(options.metadata))).decode()
    return spans.start_root(options.name, attributes, inputs)


def _inputs(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:  # the call itself is wrong: the function is about to say so
        return {"args": plain(args), "kwargs": plain(kwargs)}
    return {key: plain(value) for key, value in bound.arguments.items() if key not in ("self", "cls")}


def _task_key(name: str, inputs: dict[str, Any]) -> str:
    """The same function with the same inputs is the same task (BLAKE2b, 16 bytes, hex)."""
    return hashlib.blake2b(msgspec.json.encode([name, inputs]), digest_size=16).hexdigest()


def _end(live: LiveTrajectory, *, result: Any = None, error: BaseException | None = None) -> None:
    if error is None:
        guarded(spans.set_content, live.root, live, spans.OUTPUT, result)
        live.root.set_attribute(spans.STATUS, "finished")
    else:
        live.root.set_attribute(spans.STATUS, "failed")
        guarded(spans.fail, live.root, error)
    guarded(live.root.end)
