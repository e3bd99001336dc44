"""`@art.tool`: calls of a plain function appear as tool calls."""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import art_sdk as art
from art_sdk.store import Store
from art_sdk.store.reading import Span

Stored = Callable[[], Store]


def tool_spans(store: Store) -> list[Span]:
    (run,) = store.trajectories()
    return [span for span in run.spans if span.operation == "execute_tool"]


@art.tool
def weather(city: str, *, days: int = 1) -> dict[str, Any]:
    """The weather."""
    return {"city": city, "days": days}


@art.tool
async def search(query: str) -> list[str]:
    await asyncio.sleep(0)
    return [query]


@art.tool
def broken(x: int) -> None:
    raise LookupError(f"no {x}")


def test_a_sync_tool_is_recorded_with_arguments_and_result(stored: Stored) -> None:
    @art.trajectory
    def handle() -> Any:
        return weather("Rome", days=2)

    assert handle() == {"city": "Rome", "days": 2}
    (span,) = tool_spans(stored())
    assert span.name == "execute_tool weather"
    assert span.attributes["gen_ai.tool.name"] == "weather"
    assert span.attributes["gen_ai.tool.call.arguments"] == {"city": "Rome", "days": 2}
    assert span.attributes["gen_ai.tool.call.result"] == {"city": "Rome", "days": 2}
    assert span.error is None
    assert span.seconds is not None


async def test_an_async_tool_is_recorded_with_arguments_and_result(stored: Stored) -> None:
    @art.trajectory
    async def handle() -> Any:
        return await search(query="a")

    assert await handle() == ["a"]
    (span,) = tool_spans(stored())
    assert span.attributes["gen_ai.tool.call.arguments"] == {"query": "a"}
    assert span.attributes["gen_ai.tool.call.result"] == ["a"]


def test_a_tool_that_raises_is_recorded_as_failed(stored: Stored) -> None:
    @art.trajectory
    def handle() -> str:
        try:
            broken(3)
        except LookupError as error:
            return str(error)
        return ""

    assert handle() == "no 3"
    (span,) = tool_spans(stored())
    assert span.error == "LookupError: no 3"
    assert span.attributes["error.type"] == "LookupError"
    assert "gen_ai.tool.call.result" not in span.attributes


def test_a_tool_inside_a_tool_is_its_child(stored: Stored) -> None:
    @art.tool
    def outer() -> Any:
        return weather("Rome")

    @art.trajectory
    def handle() -> Any:
        outer()
        return weather("Oslo")

    handle()
    first, inner, second = tool_spans(stored())
    assert (first.name, inner.name, second.name) == (
        "execute_tool outer",
        "execute_tool weather",
        "execute_tool weather",
    )
    assert inner.parent_id == first.span_id
    assert second.parent_id == first.parent_id


async def test_parallel_tools_are_siblings(stored: Stored) -> None:
    @art.trajectory
    async def handle() -> Any:
        return await asyncio.gather(asyncio.to_thread(weather, "Rome"), asyncio.to_thread(weather, "Oslo"), search("x"))

    await handle()
    (run,) = stored().trajectories()
    assert len(run.spans) == 4
    assert {span.parent_id for span in run.spans[1:]} == {run.spans[0].span_id}


def test_outside_a_trajectory_a_tool_is_just_a_function(home: Any) -> None:
    from art_sdk.capture import journal

    assert weather("Rome") == {"city": "Rome", "days": 1}
    assert asyncio.run(search("x")) == ["x"]
    with pytest.raises(LookupError):
        broken(1)
    assert journal.current() is None


def test_a_wrong_call_raises_the_tools_own_type_error(stored: Stored) -> None:
    @art.trajectory
    def handle() -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'town'"):
            weather(town="Rome")  # type: ignore[call-arg]

    handle()
    (span,) = tool_spans(stored())
    assert span.error is not None
    assert span.attributes["gen_ai.tool.call.arguments"] == {"args": [], "kwargs": {"town": "Rome"}}


def test_metadata_and_signature_are_kept() -> None:
    assert (weather.__name__, weather.__doc__) == ("weather", "The weather.")
    assert str(inspect.signature(weather)) == "(city: str, *, days: int = 1) -> dict[str, typing.Any]"
    assert inspect.iscoroutinefunction(search)


def _generator() -> Any:
    yield 1


@pytest.mark.parametrize("thing", [len, dict, _generator, partial(_generator), 3])
def test_what_is_no_plain_function_is_refused(thing: Any) -> None:
    with pytest.raises(art.ConfigError, match="takes a plain sync or async function"):
        art.tool(thing)
