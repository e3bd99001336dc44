"""A decorated function is its undecorated twin: it yields, returns and raises the same, at the same steps.

Random bodies are driven by random `next`, `send`, `throw`, `close` and cancels, side by side.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import art_sdk as art

EXPLORE = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
ERRORS = {"value": ValueError, "exit": GeneratorExit, "stop": StopIteration, "astop": StopAsyncIteration}


@dataclass(frozen=True)
class Op:
    """Yield `value`; what is thrown in there is `caught` or not, and then answered by `then`."""

    value: int
    caught: str
    then: str
    pauses: int


ops = st.builds(
    Op,
    st.integers(0, 9),
    st.sampled_from(["nothing", "errors", "everything"]),
    st.sampled_from(["go on", "raise", "raise other", "return", "yield again"]),
    st.integers(0, 2),
)
bodies = st.tuples(st.lists(ops, max_size=4), st.sampled_from(["return", "raise", "fall off"]))
commands = st.lists(
    st.one_of(
        st.just(("next",)),
        st.tuples(st.just("send"), st.integers(0, 9)),
        st.tuples(st.just("throw"), st.sampled_from(sorted(ERRORS))),
        st.just(("close",)),
        st.tuples(st.just("cancel"), st.integers(0, 2)),
    ),
    max_size=7,
)
CAUGHT: dict[str, Any] = {"nothing": (), "errors": Exception, "everything": BaseException}


def body(script: tuple[list[Op], str], log: list[Any]) -> Iterator[Any]:
    steps, end = script
    for op in steps:
        log.append(art.current_trajectory() is not None)
        try:
            log.append(("got", (yield op.value)))
        except CAUGHT[op.caught] as error:
            log.append(("caught", type(error).__name__))
            if op.then == "raise":
                raise
            if op.then == "raise other":
                raise KeyError("other") from None
            if op.then == "return":
                return "early"
            if op.then == "yield again":
                yield -1
        finally:
            log.append("finally")
    if end == "raise":
        raise RuntimeError("at the end")
    return "done" if end == "return" else None


async def async_body(script: tuple[list[Op], str], log: list[Any]) -> AsyncIterator[Any]:
    steps, end = script
    for op in steps:
        log.append(art.current_trajectory() is not None)
        try:
            for _ in range(op.pauses):
                await asyncio.sleep(0)
            log.append(("got", (yield op.value)))
        except CAUGHT[op.caught] as error:
            log.append(("caught", type(error).__name__))
            await asyncio.sleep(0)
            if op.then == "raise":
                raise
            if op.then == "raise other":
                raise KeyError("other") from None
            if op.then == "return":
                return
            if op.then == "yield again":
                yield -1
        finally:
            log.append("finally")
    if end == "raise":
        raise RuntimeError("at the end")


def shown(error: BaseException | None) -> Any:
    """An exception with what it came from, as far as its traceback shows it."""
    if error is None:
        return None
    return type(error).__name__, str(error).replace("'_drive'", "").replace("body", ""), shown(error.__context__)


def drive(generator: Any, steps: list[Any]) -> list[Any]:
    seen: list[Any] = []
    for step, *sent in steps:
        try:
            match step:
                case "next" | "cancel":
                    seen.append(("item", next(generator)))
                case "send":
                    seen.append(("item", generator.send(sent[0])))
                case "throw":
                    seen.append(("item", generator.throw(ERRORS[sent[0]]("thrown"))))
                case "close":
                    seen.append(("closed", generator.close()))
        except StopIteration as stop:
            seen.append(("stop", stop.value))
        except BaseException as error:
            seen.append(("raised", shown(error)))
        seen.append(("outside", art.current_trajectory()))
    while generator.gi_frame is not None:
        try:
            generator.close()
        except BaseException as error:
            seen.append(("raised", shown(error)))
    return seen


@EXPLORE
@given(bodies, commands)
def test_a_generator_is_its_twin(home: Any, script: Any, steps: list[Any]) -> None:
    plain_log: list[Any] = []
    our_log: list[Any] = []
    plain, ours = body(script, plain_log), art.trajectory(body)(script, our_log)
    expected = outcome(lambda: drive(plain, steps))
    assert outcome(lambda: drive(ours, steps)) == expected
    assert [entry for entry in our_log if entry is not True] == [entry for entry in plain_log if entry is not False]
    assert False not in our_log, "the trajectory was not current in the function's code"


def outcome(run: Any) -> Any:
    try:
        return run()
    except BaseException as error:
        return shown(error)


async def drive_async(generator: Any, steps: list[Any]) -> list[Any]:
    seen: list[Any] = []
    for step, *sent in steps:
        try:
            match step:
                case "next":
                    seen.append(("item", await anext(generator)))
                case "send":
                    seen.append(("item", await generator.asend(sent[0])))
                case "throw":
                    seen.append(("item", await generator.athrow(ERRORS[sent[0]]("thrown"))))
                case "close":
                    seen.append(("closed", await generator.aclose()))
                case "cancel":
                    task = asyncio.ensure_future(anext(generator, "ended"))
                    for _ in range(sent[0]):
                        await asyncio.sleep(0)
                    task.cancel()
                    seen.append(("item", await task))
        except StopAsyncIteration:
            seen.append(("stop",))
        except BaseException as error:
            seen.append(("raised", shown(error)))
        seen.append(("outside", art.current_trajectory()))
    try:
        await generator.aclose()
    except BaseException as error:
        seen.append(("raised", shown(error)))
    return seen


def ends_when_closed(script: tuple[list[Op], str]) -> bool:
    """One that ignores its `aclose` can't be closed again, and complains to the garbage collector."""
    return not any(op.caught == "everything" and op.then in ("go on", "yield again") for op in script[0])


@EXPLORE
@given(bodies.filter(ends_when_closed), commands)
def test_an_async_generator_is_its_twin(home: Any, script: Any, steps: list[Any]) -> None:
    plain_log: list[Any] = []
    our_log: list[Any] = []

    async def both() -> None:
        expected = await drive_async(async_body(script, plain_log), steps)
        assert await drive_async(art.trajectory(async_body)(script, our_log), steps) == expected

    asyncio.run(both())
    assert [entry for entry in our_log if entry is not True] == [entry for entry in plain_log if entry is not False]
    assert False not in our_log, "the trajectory was not current in the function's code"


def plain_function(a: int, /, b: str = "b", *rest: Any, c: float = 1.0, **more: Any) -> Any:
    """Says what it does."""
    return a, b, rest, c, more


async def async_function(a: int, b: str = "b") -> Any:
    """Says what it does."""
    await asyncio.sleep(0)
    return a, b


FUNCTIONS = [plain_function, async_function, body, async_body]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_all_that_inspect_says_survives(function: Any) -> None:
    ours = art.trajectory(function)
    assert inspect.signature(ours) == inspect.signature(function)
    assert inspect.getsource(ours) == inspect.getsource(function)
    assert inspect.getdoc(ours) == inspect.getdoc(function)
    for asks in (
        inspect.isfunction,
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
        asyncio.iscoroutinefunction,
        callable,
    ):
        assert asks(ours) == asks(function), asks
    for name in ("__name__", "__qualname__", "__module__", "__annotations__", "__defaults__", "__kwdefaults__"):
        assert getattr(ours, name) == getattr(function, name)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_wrong_call_is_wrong_at_once_and_in_the_same_words(function: Any, home: Any) -> None:
    with pytest.raises(TypeError) as plain:
        function(nonsense=1)
    with pytest.raises(TypeError) as ours:
        art.trajectory(function)(nonsense=1)
    assert str(ours.value) == str(plain.value)


async def test_what_is_called_and_never_run_is_no_trajectory(stored: Any) -> None:
    art.trajectory(body)(([], "return"), [])
    art.trajectory(async_body)(([], "return"), [])
    art.trajectory(async_function)(1).close()
    assert not list(stored().trajectories())
