"""Whatever kind of function is decorated: its run is one trajectory, from its first line to its last."""

import asyncio
import copy
import functools
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from langchain_core.tools import tool as langchain_tool
from starlette.responses import StreamingResponse

import art_sdk as art
from art_sdk.store import Store
from art_sdk.store.reading import Trajectory

Stored = Callable[[], Store]


def one(stored: Stored) -> Trajectory:
    (run,) = stored().trajectories()
    return run


@art.trajectory
def count(to: int) -> Iterator[int]:
    yield from range(to)


@art.trajectory
async def acount(to: int) -> Any:
    for n in range(to):
        yield n


@art.trajectory
def double(n: int) -> int:
    return 2 * n


class Desk:
    def __init__(self, name: str = "a") -> None:
        self.name = name

    @art.trajectory
    def handle(self, ticket: str) -> str:
        return f"{self.name}: {ticket}"

    @art.trajectory
    async def ahandle(self, ticket: str) -> str:
        return f"{self.name}: {ticket}"

    @art.trajectory
    def stream(self, ticket: str) -> Iterator[str]:
        yield from ticket

    @classmethod
    @art.trajectory
    def inner_class(cls, ticket: str) -> str:
        return f"{cls.__name__}: {ticket}"

    @art.trajectory
    @classmethod
    def outer_class(cls, ticket: str) -> str:
        return f"{cls.__name__}: {ticket}"

    @staticmethod
    @art.trajectory
    def inner_static(ticket: str) -> str:
        return ticket

    @art.trajectory
    @staticmethod
    def outer_static(ticket: str) -> str:
        return ticket

    def __call__(self, ticket: str) -> str:
        return f"{self.name} called: {ticket}"


def test_a_generators_trajectory_lasts_from_its_first_item_to_its_end(stored: Stored) -> None:
    made = count(3)
    assert not list(stored().trajectories())
    assert next(made) == 0
    assert one(stored).status == "running"
    assert list(made) == [1, 2]
    run = one(stored)
    assert (run.status, run.input, run.output) == ("finished", {"to": 3}, [0, 1, 2])


def test_a_generator_that_is_left_early_is_cancelled(stored: Stored) -> None:
    for _ in count(3):
        break
    run = one(stored)
    assert (run.status, run.error) == ("cancelled", None)


async def test_an_async_generators_trajectory_has_its_duration(stored: Stored) -> None:
    made = acount(2)
    await anext(made)
    await asyncio.sleep(0.05)
    assert [item async for item in made] == [1]
    run = one(stored)
    assert (run.status, run.output) == ("finished", [0, 1])
    assert run.ended_at - run.started_at >= 50e6


METHODS: dict[str, tuple[Callable[[Desk], Any], str]] = {
    "method": (lambda d: d.handle("t"), "a: t"),
    "method of the class": (lambda d: Desk.handle(d, "t"), "a: t"),
    "async method": (lambda d: asyncio.run(d.ahandle("t")), "a: t"),
    "generator method": (lambda d: "".join(d.stream("t")), "t"),
    "class method below": (lambda d: d.inner_class("t"), "Desk: t"),
    "class method above": (lambda d: Desk.outer_class("t"), "Desk: t"),
    "static method below": (lambda d: Desk.inner_static("t"), "t"),
    "static method above": (lambda d: d.outer_static("t"), "t"),
}


@pytest.mark.parametrize("way", METHODS)
def test_methods_keep_self_to_themselves(stored: Stored, way: str) -> None:
    call, expected = METHODS[way]
    assert call(Desk()) == expected
    run = one(stored)
    assert run.input == {"ticket": "t"}
    assert run.name.startswith("Desk.")


def test_a_callable_object_and_a_partial(stored: Stored) -> None:
    assert art.trajectory(Desk("b"))("t") == "b called: t"
    assert art.trajectory(functools.partial(Desk("c"), ticket="u"))() == "c called: u"
    runs = sorted((run.name, str(run.output)) for run in stored().trajectories())
    assert runs == [("Desk", "b called: t"), ("Desk", "c called: u")]


def test_a_function_that_returns_a_generator_runs_until_that_is_done(stored: Stored) -> None:
    @art.trajectory
    def handle() -> Iterator[str]:
        def words() -> Iterator[str]:
            assert art.current_trajectory() is not None
            yield "a"
            yield "b"

        return words()

    made = handle()
    assert one(stored).status == "running"
    assert list(made) == ["a", "b"]
    assert (one(stored).status, one(stored).output) == ("finished", ["a", "b"])


async def test_a_sync_function_that_returns_an_awaitable_runs_until_that_is_done(stored: Stored) -> None:
    @art.trajectory
    def coroutine() -> Any:
        return double_later(1)

    @art.trajectory
    def task() -> Any:
        return asyncio.ensure_future(double_later(2))

    async def double_later(n: int) -> int:
        await asyncio.sleep(0.01)
        art.reward(n)
        return 2 * n

    running = task()
    assert isinstance(running, asyncio.Task)
    assert [await coroutine(), await running] == [2, 4]
    assert sorted((run.output, run.reward) for run in stored().trajectories()) == [(2, 1), (4, 2)]


def test_a_function_that_returns_a_future(stored: Stored) -> None:
    with ThreadPoolExecutor(1) as pool:

        @art.trajectory
        def handle(fault: Exception | None) -> Future[int]:
            return pool.submit(work, fault)

        def work(fault: Exception | None) -> int:
            if fault:
                raise fault
            return 3

        assert handle(None).result() == 3
        with pytest.raises(KeyError):
            handle(KeyError("x")).result()
    assert sorted((run.status, run.output) for run in stored().trajectories()) == [("failed", None), ("finished", 3)]


@pytest.fixture
def web() -> TestClient:
    app = FastAPI()

    @app.post("/sync/{ticket}")
    @art.trajectory(name="sync")
    def handle(ticket: str, loud: bool = False) -> dict[str, str]:
        return {"answer": ticket.upper() if loud else ticket}

    @app.post("/async/{ticket}")
    @art.trajectory(name="async")
    async def ahandle(ticket: str) -> dict[str, str]:
        return {"answer": ticket}

    @app.post("/stream/{ticket}")
    @art.trajectory(name="stream")
    async def stream(ticket: str) -> StreamingResponse:
        async def body() -> Any:
            for letter in ticket:
                assert art.current_trajectory() is not None
                yield letter
            art.reward(0.5)

        return StreamingResponse(body())

    @app.post("/sync_stream/{ticket}")
    @art.trajectory(name="sync_stream")
    def sync_stream(ticket: str) -> StreamingResponse:
        return StreamingResponse(iter(ticket))

    return TestClient(app)


@pytest.mark.parametrize(
    ("path", "answer", "output"),
    [
        ("sync/hi?loud=1", '{"answer":"HI"}', {"answer": "HI"}),
        ("async/hi", '{"answer":"hi"}', {"answer": "hi"}),
        ("stream/hi", "hi", ["h", "i"]),
        ("sync_stream/hi", "hi", ["h", "i"]),
    ],
)
def test_under_a_fastapi_route(web: TestClient, stored: Stored, path: str, answer: str, output: Any) -> None:
    assert web.post(f"/{path}").text == answer
    run = one(stored)
    assert (run.name, run.status, run.output) == (path.partition("/")[0], "finished", output)
    assert run.input["ticket"] == "hi"
    assert run.reward == (0.5 if run.name == "stream" else None)


def test_under_langchains_tool_decorator(stored: Stored) -> None:
    @langchain_tool
    @art.trajectory
    def look_up(order: str) -> str:
        """Find an order."""
        return f"{order} is packed"

    assert look_up.args == {"order": {"title": "Order", "type": "string"}}
    assert look_up.invoke({"order": "x"}) == "x is packed"
    assert one(stored).input == {"order": "x"}


def test_over_and_under_other_decorators(stored: Stored) -> None:
    @functools.lru_cache
    @art.trajectory
    def cached(n: int) -> int:
        return n

    assert [cached(1), cached(1), cached(2)] == [1, 1, 2]
    assert [run.output for run in stored().trajectories()] == [2, 1]


def test_a_decorated_function_is_pickled_and_copied_as_a_function_is() -> None:
    assert pickle.loads(pickle.dumps(double)) is double
    assert copy.copy(double) is copy.deepcopy(double) is double
    method = pickle.loads(pickle.dumps(Desk("p").handle))
    assert method.__self__.name == "p"


def test_a_reward_function_of_a_generator_gets_what_it_yielded(stored: Stored) -> None:
    @art.trajectory(reward=lambda items, to: len(items) / to)
    def some(to: int) -> Iterator[int]:
        yield from range(to // 2)

    assert list(some(4)) == [0, 1]
    assert one(stored).reward == 0.5


async def test_an_async_reward_function_of_an_async_generator(stored: Stored) -> None:
    async def score(items: list[int]) -> float:
        await asyncio.sleep(0)
        return float(sum(items))

    @art.trajectory(reward=score)
    async def some() -> Any:
        yield 1
        yield 2

    assert [item async for item in some()] == [1, 2]
    assert one(stored).reward == 3


def test_what_a_generator_returned_is_kept_beside_what_it_yielded(stored: Stored) -> None:
    @art.trajectory
    def some() -> Any:
        yield 1
        return "sum"

    assert list(some()) == [1]
    assert one(stored).output == {"yielded": [1], "returned": "sum"}


def test_a_scope_is_a_trajectory(stored: Stored) -> None:
    with art.trajectory_scope("triage", input={"ticket": "t"}, metadata={"shift": 3}) as run:
        assert art.current_trajectory().id == run.id
        run.output = "done"
        art.reward(1)
    assert art.current_trajectory() is None
    found = one(stored)
    assert (found.name, found.input, found.output, found.reward) == ("triage", {"ticket": "t"}, "done", 1)
    assert found.details["metadata"] == {"shift": 3}


def test_a_scope_that_raises_is_failed_and_raises(stored: Stored) -> None:
    with pytest.raises(LookupError, match="gone"), art.trajectory_scope("triage"):
        raise LookupError("gone")
    assert (one(stored).status, one(stored).error) == ("failed", "LookupError: gone")


async def test_a_scope_in_an_async_generator_is_left_in_another_task(stored: Stored, caplog: Any) -> None:
    async def words() -> Any:
        with art.trajectory_scope("triage"):
            yield 1
            yield 2

    made = words()
    await asyncio.ensure_future(anext(made))
    await asyncio.ensure_future(made.aclose())
    assert one(stored).status == "cancelled"
    assert not caplog.records


def test_group_names_the_task_instead_of_the_arguments(stored: Stored) -> None:
    @art.trajectory(name="handle", group=lambda ticket, attempt: ticket)
    def by_function(ticket: str, attempt: int) -> None: ...

    @art.trajectory(name="handle", group="t")
    def by_name(attempt: int) -> None: ...

    for attempt in range(2):
        by_function("t", attempt)
    by_name(3)
    by_function("u", 1)
    groups = [run.group_id for run in stored().trajectories()]
    assert groups[0] != groups[1] == groups[2] == groups[3]


def test_arguments_can_be_left_out(stored: Stored, home: Any) -> None:
    @art.trajectory(capture_input=False)
    def handle(ticket: str) -> str:
        return "ok"

    handle("my secret")
    assert one(stored).input == {"omitted": "capture_input=False"}
    assert b"my secret" not in b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_a_decorated_function_inside_another_is_a_trajectory_of_its_own(stored: Stored) -> None:
    @art.trajectory
    def outer() -> Any:
        assert list(count(2)) == [0, 1]
        return art.current_trajectory().id

    identity = outer()
    inner, found = sorted(stored().trajectories(), key=lambda run: run.parent_id is None)
    assert (found.id, found.parent_id) == (identity, None)
    assert (inner.name, inner.parent_id) == ("count", identity)
