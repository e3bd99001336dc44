"""`@art.trajectory`: one run of the decorated function is one trajectory.

The trajectory is current while the function's own code runs and at no other time: not between the
items of a generator, nor in the caller. What the caller sees is the function's own doing; whatever
kind of thing it returns is of that kind still. Capture that fails is logged once and the function
runs on.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar, overload

import wrapt

from ..errors import ConfigError
from . import runs
from .content import plain
from .guard import guarded
from .runs import Options
from .spans import LiveTrajectory

P = ParamSpec("P")
R = TypeVar("R")

DECORATED = "__art_trajectory__"


@overload
def trajectory(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def trajectory(
    *,
    name: str | None = None,
    policy: str | None = None,
    reward: Callable[..., Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    capture_input: bool = True,
    group: str | Callable[..., Any] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def trajectory(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    policy: str | None = None,
    reward: Callable[..., Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    capture_input: bool = True,
    group: str | Callable[..., Any] | None = None,
) -> Any:
    """Make every run of a function a trajectory.

    Any function: sync, async, a generator, an async generator, a method, a callable object. A generator's
    trajectory lasts from its first item to its end, that of a function which returns a generator, an awaitable or
    a streaming response until that is done.

    Args:
        name: what to call it; the function's own qualified name otherwise.
        policy: the policy that is to learn from it; `ART_POLICY` otherwise, and beyond that
            whichever policies the gateway answered its calls with.
        reward: called with the function's result (a generator's: the list of what it yielded) and then its
            arguments, returns the reward (awaited where `function` is async too). What it raises is stored with
            the trajectory and never reaches the caller.
        metadata: kept with each trajectory.
        capture_input: False keeps the arguments out of the store.
        group: the task, or a function of the arguments that names it: trajectories of one task are compared
            with each other. The arguments themselves otherwise.

    Raises:
        ConfigError: for what can't be called, a class, or an async `reward` of a sync function.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        from ..integrations import instrument_once

        plain_function = _function_of(function)
        kind = _kind(plain_function)
        title = name or _name_of(plain_function)
        if inspect.iscoroutinefunction(reward) and kind not in ("async", "async generator"):
            raise ConfigError(f"@art.trajectory on {title}: an async reward function needs an async function")
        instrument_once()
        options = Options(title, policy, reward, metadata, capture_input, group)
        with suppress(ValueError, TypeError):  # some functions written in C don't say
            return _Decorated(function, options, kind, inspect.signature(plain_function))
        return _Decorated(function, options, kind, None)

    return decorate if function is None else decorate(function)


@contextmanager
def trajectory_scope(
    name: str,
    *,
    input: Any = None,
    policy: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    group: str | None = None,
) -> Iterator["Scope"]:
    """A trajectory for code that is not a function of its own: the block is the run.

        with art.trajectory_scope("triage", input=ticket) as run:
            run.output = triage(ticket)
            art.reward(score(run.output))

    `input` is the task, and `run.output` is what is kept as the result. See `trajectory` for the rest.
    """
    from ..integrations import instrument_once

    instrument_once()
    options = Options(name, policy, None, metadata)
    live = runs.begin(options, input if isinstance(input, Mapping) else {"input": input}, key=group)
    scope = Scope(live)
    try:
        with runs.current(live):
            yield scope
    except BaseException as error:
        runs.fail(live, error)
        raise
    runs.end(live, scope.output)


class Scope:
    """What `trajectory_scope` gives: `id` for a later reward, and `output` to set."""

    def __init__(self, live: LiveTrajectory) -> None:
        self.id = live.id
        self.output: Any = None


def _function_of(function: Any) -> Any:
    """The function behind a static or class method, a partial or a callable object."""
    if isinstance(function, staticmethod | classmethod):
        return _function_of(function.__func__)
    if isinstance(function, functools.partial):
        return function
    if inspect.isclass(function) or not callable(function):
        raise ConfigError(f"@art.trajectory takes a function, method or callable object, got {function!r}")
    return function


def _kind(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if inspect.isgeneratorfunction(function):
        return "generator"
    return "async" if inspect.iscoroutinefunction(function) else "plain"


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__).replace("<locals>.", "")


class _Call:
    """One call of a decorated function: its trajectory begins with the function's own code."""

    def __init__(self, options: Options, inputs: dict[str, Any], args: Any, kwargs: dict[str, Any]) -> None:
        self._options = options
        self._inputs = inputs
        self._args = args
        self._kwargs = kwargs
        self._live: LiveTrajectory | None = None

    def begin(self) -> LiveTrajectory:
        """Start the trajectory, the first time."""
        if self._live is None:
            group = self._options.group
            key = guarded(group, *self._args, **self._kwargs) if callable(group) else group
            self._live = runs.begin(self._options, self._inputs, key=key)
        return self._live

    def finish(self, live: LiveTrajectory, result: Any) -> None:
        try:
            if self._options.reward is not None:
                with runs.current(live):
                    runs.judge(live, self._options.reward, result, self._args, self._kwargs)
        finally:
            runs.end(live, result)

    async def finish_async(self, live: LiveTrajectory, result: Any) -> None:
        try:
            if self._options.reward is not None:
                with runs.current(live):
                    await runs.judge_async(live, self._options.reward, result, self._args, self._kwargs)
        finally:
            runs.end(live, result)

    def driven(self, made: Any) -> Any:
        """What has still to run, as the same kind of thing that runs in the trajectory. None for all else."""
        if inspect.isgenerator(made):
            return _like(made, _drive(self, made))
        if inspect.isasyncgen(made):
            return _like(made, _drive_async(self, made))
        if inspect.iscoroutine(made):
            return _like(made, _drive_coroutine(self, lambda: made))
        return None

    def returned(self, result: Any) -> Any:
        """What the caller gets for `result`: the same, or the same kind of thing where that has still to run."""
        live = self.begin()
        if (driven := self.driven(result)) is not None:
            return driven
        if callable(add_done_callback := getattr(result, "add_done_callback", None)):
            add_done_callback(self._done)
        # Starlette's streaming response
        elif isinstance(body := getattr(result, "body_iterator", None), AsyncIterable):
            result.body_iterator = _drive_async(self, body if inspect.isasyncgen(body) else _iterate(body))
        else:
            self.finish(live, result)
        return result

    def _done(self, future: Any) -> None:
        live = self.begin()
        try:
            result = future.result()
        except BaseException as error:
            runs.fail(live, error)
            return
        self.finish(live, result)


def _drive(call: _Call, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """`inner`, step by step, with the trajectory current while it runs. `close` is passed on as what it is, a
    `GeneratorExit` thrown in."""
    live = call.begin()
    items: list[Any] = []
    step, value, left = inner.send, None, None
    while True:
        try:
            with runs.current(live):
                item = step(value)
        except StopIteration as stop:
            if left is None:
                call.finish(live, items if stop.value is None else {"yielded": items, "returned": plain(stop.value)})
            else:
                runs.fail(live, left)
            return stop.value
        except BaseException as error:
            runs.fail(live, error)
            raise
        items.append(guarded(plain, item))
        try:
            step, value = inner.send, (yield item)
        except BaseException as error:
            step, value = inner.throw, error  # out here, so that what it leads to doesn't seem raised in a handler
            left = error if isinstance(error, GeneratorExit) else None


async def _drive_async(call: _Call, inner: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    live = call.begin()
    items: list[Any] = []
    step: Callable[[Any], Any] = inner.asend
    value: Any = None
    left: BaseException | None = None
    while True:
        try:
            with runs.current(live):
                item = await step(value)
        except StopAsyncIteration:
            if left is None:
                await call.finish_async(live, items)
            else:
                runs.fail(live, left)
            return
        except BaseException as error:
            runs.fail(live, error)
            raise
        items.append(guarded(plain, item))
        try:
            step, value = inner.asend, (yield item)
        except BaseException as error:
            step, value = inner.athrow, error
            left = error if isinstance(error, GeneratorExit) else None


async def _drive_coroutine(call: _Call, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    live = call.begin()
    with runs.current(live):
        try:
            result = await make()
        except BaseException as error:
            runs.fail(live, error)
            raise
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or hasattr(result, "body_iterator"):
        return call.returned(result)
    await call.finish_async(live, result)
    return result


async def _iterate(body: AsyncIterable[Any]) -> AsyncGenerator[Any, Any]:
    async for item in body:
        yield item


def _like(original: Any, driver: Any) -> Any:
    driver.__name__ = getattr(original, "__name__", driver.__name__)
    driver.__qualname__ = getattr(original, "__qualname__", driver.__qualname__)
    return driver


class _Bound(wrapt.BoundFunctionWrapper[..., Any]):
    """A decorated method of an object or a class."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return getattr, (self.__self__, self.__name__)


class _Decorated(wrapt.FunctionWrapper[..., Any]):
    """The decorated function: to `inspect`, to type checks and to method lookup it is the function itself."""

    __bound_function_wrapper__ = _Bound

    def __init__(self, function: Any, options: Options, kind: str, signature: inspect.Signature | None) -> None:
        super().__init__(function, self._self_run)
        self._self_options = options
        self._self_kind = kind
        self._self_signature = signature
        with suppress(AttributeError, TypeError):
            setattr(function, DECORATED, options.name)  # decorators above this one hand it on

    def _self_run(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        try:
            inputs = self._self_inputs(instance, args, kwargs)
        except TypeError:  # the call itself is wrong: the function is about to say so
            if self._self_kind != "plain":
                return wrapped(*args, **kwargs)
            inputs = {"args": args, "kwargs": kwargs}
        call = _Call(self._self_options, inputs, args, kwargs)
        if self._self_kind in ("generator", "async generator"):
            return call.driven(wrapped(*args, **kwargs))
        if self._self_kind == "async":
            return _like(wrapped, _drive_coroutine(call, lambda: wrapped(*args, **kwargs)))
        live = call.begin()
        with runs.current(live):
            try:
                result = wrapped(*args, **kwargs)
            except BaseException as error:
                runs.fail(live, error)
                raise
        return call.returned(result)

    def _self_inputs(self, instance: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, without the object or class that a method is of. Raises `TypeError`."""
        signature = self._self_signature
        if signature is None:
            return {"args": args, "kwargs": kwargs}
        bound = dict(signature.bind(*(() if instance is None else (instance,)), *args, **kwargs).arguments)
        if instance is not None:
            bound.pop(next(iter(signature.parameters)), None)
        return bound

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__qualname__  # by name, as functions are pickled

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def is_decorated(function: Any) -> bool:
    return isinstance(function, _Decorated | _Bound) or hasattr(function, DECORATED)
