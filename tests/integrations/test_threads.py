"""The trajectory follows work into other threads, and nothing else does."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from stub_api import StubApi

import art_sdk as art
from art_sdk import settings
from art_sdk.capture import spans
from art_sdk.store import Store
from art_sdk.store.reading import Span, Trajectory

pytestmark = pytest.mark.usefixtures("home")


def current() -> str | None:
    """The id of the trajectory that this code is in."""
    live = art.current_trajectory()
    return live.id if live else None


def ask(api: StubApi, words: str) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": words}]}
    return httpx.post(f"{api.openai_url}/chat/completions", json=body).json()


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def in_executor(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def in_loop(function: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function)

    return asyncio.run(run())


def in_pool(function: Callable[[], Any]) -> Any:
    with ThreadPool(1) as pool:
        return pool.apply(function)


def in_timer(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    timer = threading.Timer(0.001, lambda: found.append(function()))
    timer.start()
    timer.join()
    return found[0]


def in_subclass(function: Callable[[], Any]) -> Any:
    class Worker(threading.Thread):
        found: Any = None

        def run(self) -> None:
            self.found = function()

    worker = Worker()
    worker.start()
    worker.join()
    return worker.found


def in_own_executor(function: Callable[[], Any]) -> Any:
    class PerCall(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            threading.Thread(target=lambda: future.set_result(fn(*args, **kwargs))).start()
            return future

    async def run() -> Any:
        return await asyncio.get_running_loop().run_in_executor(PerCall(), function)  # type: ignore[arg-type]

    return asyncio.run(run())


WAYS = [in_thread, in_executor, in_loop, in_pool, in_timer, in_subclass, in_own_executor]


@pytest.mark.parametrize("way", WAYS)
def test_a_call_made_in_another_thread_belongs_to_the_trajectory_and_the_span_that_handed_it_over(
    api: StubApi, captured: Callable[[], Trajectory], way: Callable[[Callable[[], Any]], Any]
) -> None:
    @art.tool
    def search() -> None:
        way(lambda: ask(api, "hello"))

    with art.trajectory_scope("run"):
        search()
    tool, call = (span for span in captured().spans if span.operation != "invoke_agent")
    assert (tool.operation, call.operation, call.parent_id) == ("execute_tool", "chat", tool.span_id)


@pytest.mark.parametrize("method", ["map", "map_async", "starmap", "starmap_async", "imap", "imap_unordered"])
def test_every_method_of_a_thread_pool_carries_the_trajectory(method: str) -> None:
    def here(_: int) -> str | None:
        return current()

    items: list[Any] = [(1,), (2,)] if "star" in method else [1, 2]
    with ThreadPool(2) as pool:
        for _ in range(2):
            with art.trajectory_scope("run") as run:
                result = getattr(pool, method)(here, items)
                found = result.get() if "async" in method else list(result)
            assert found == [run.id] * 2
        assert pool.map(here, [1, 2]) == [None, None]


@contextmanager
def workers(kind: str) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """One worker, started in the midst of a trajectory; what it yields runs something there."""
    if kind == "executor":
        with ThreadPoolExecutor(1) as executor:
            yield lambda function: executor.submit(function).result()
    else:
        with ThreadPool(1) as pool:
            yield lambda function: pool.apply_async(function).get()


@pytest.mark.parametrize("kind", ["executor", "pool"])
def test_a_worker_begun_in_one_trajectory_is_in_another_or_none_when_its_work_is(kind: str) -> None:
    with art.trajectory_scope("a") as a, workers(kind) as work:
        assert work(current) == a.id
        with art.trajectory_scope("b") as b:
            assert work(current) == b.id
        assert work(current) == a.id
        with spans.carried(None):
            assert work(current) is None


@pytest.mark.parametrize("kind", ["executor", "pool"])
def test_a_worker_does_not_keep_a_trajectory_alive(kind: str) -> None:
    gc.disable()  # it must not take a collection to let go of it
    try:
        with art.trajectory_scope("a"), workers(kind) as work:
            work(current)
            thread = in_thread(threading.current_thread)
            gone = weakref.ref(spans.place().live)  # type: ignore[union-attr]
            held = work, thread
            with spans.carried(None):
                work(current)
        assert held
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_many_trajectories_in_one_pool_at_once_do_not_mix(api: StubApi, stored: Callable[[], Store]) -> None:
    with ThreadPoolExecutor(8) as pool, ThreadPoolExecutor(8) as runners:

        def run(number: int) -> None:
            with art.trajectory_scope("run", input=number):
                for future in [pool.submit(ask, api, f"{number}") for _ in range(4)]:
                    future.result()

        list(runners.map(run, range(25)))
        list(pool.map(lambda _: ask(api, "outside"), range(8)))
    runs = stored().trajectories()
    for run_ in runs:
        said = {str(span.attributes["gen_ai.input.messages"][0]["parts"][0]) for span in _calls(run_)}
        assert len(_calls(run_)) == 4
        assert len(said) == 1
        assert f"'{run_.input['input']}'" in said.pop()


def _calls(run: Trajectory) -> list[Span]:
    return [span for span in run.spans if span.operation == "chat"]


def test_nothing_else_of_the_context_is_carried() -> None:
    own: ContextVar[str] = ContextVar("own", default="unset")
    tracer = TracerProvider().get_tracer("users")

    def seen() -> Any:
        return own.get(), trace.get_current_span().get_span_context().is_valid, otel_context.get_value("users")

    with tracer.start_as_current_span("users"):
        token = otel_context.attach(otel_context.set_value("users", 1))
        own.set("set")
        with art.trajectory_scope("run"):
            for way in WAYS:
                assert way(seen) == ("unset", False, None)
        otel_context.detach(token)


@pytest.mark.parametrize("way", WAYS)
def test_a_reward_in_a_thread_of_a_trajectory_that_is_not_sampled_is_no_error(
    way: Callable[[Callable[[], Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_SAMPLE_RATE", "0")
    settings.reset()
    with art.trajectory_scope("run") as run:
        assert way(current) == run.id
        assert way(lambda: art.reward(1.0)) is None


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(3), KeyboardInterrupt(), SystemExit(2)])
def test_what_the_function_raises_comes_out_of_the_future_as_it_is(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with art.trajectory_scope("run"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(fail).exception() is error
    assert (error.__cause__, error.__context__) == (None, None)


def test_arguments_and_results_pass_as_they_are_and_a_wrong_call_fails_as_ever() -> None:
    def echo(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    with art.trajectory_scope("run"), ThreadPoolExecutor(1) as pool, ThreadPool(1) as threads:
        assert pool.submit(echo, 1, fn=2, self=3).result() == ((1,), {"fn": 2, "self": 3})
        assert threads.apply_async(func=echo, args=(1,), kwds={"func": 2}).get() == ((1,), {"func": 2})
        with pytest.raises(TypeError):
            pool.submit()  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            pool.submit(None).result()  # type: ignore[arg-type]
        pool.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(echo)


def test_a_thread_is_itself_again_as_soon_as_it_runs() -> None:
    seen: list[Any] = []

    class Worker(threading.Thread):
        def run(self) -> None:
            seen.append((current(), vars(self).keys() & {"run"}, self.run.__func__ is Worker.run))

    with art.trajectory_scope("run") as run:
        worker = Worker(name="mine", daemon=True)
        worker.start()
        worker.join()
        assert (worker.name, worker.daemon) == ("mine", True)
        with pytest.raises(RuntimeError, match="only be started once"):
            worker.start()
        assert "run" not in vars(worker)
        with pytest.raises(RuntimeError, match="__init__"):
            threading.Thread.start(threading.Thread.__new__(threading.Thread))
        replaced = threading.Thread()
        replaced.run = lambda: seen.append(current())  # type: ignore[method-assign]
        replaced.start()
        replaced.join()
    assert seen == [(run.id, set(), True), run.id]


def test_a_thread_that_raises_tells_the_excepthook(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    error = ValueError("no")

    def fail() -> None:
        raise error

    with art.trajectory_scope("run"):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    assert [(args.exc_value, args.thread) for args in told] == [(error, thread)]


def test_a_thread_goes_on_after_its_trajectory_and_writes_nothing_to_it(
    api: StubApi, calls: Callable[[], list[Span]]
) -> None:
    ended = threading.Event()

    def late() -> None:
        ended.wait(30)
        ask(api, "too late")

    with art.trajectory_scope("run"):
        thread = threading.Thread(target=late)
        thread.start()
    ended.set()
    thread.join()
    assert len(api.requests) == 1
    assert calls() == []


def test_a_decorated_function_in_a_thread_is_a_trajectory_with_this_one_as_its_parent(
    stored: Callable[[], Store],
) -> None:
    @art.trajectory
    def inner() -> int:
        return 1

    with art.trajectory_scope("outer") as outer, ThreadPoolExecutor(1) as pool:
        assert pool.submit(inner).result() == 1
    (run,) = (run for run in stored().trajectories() if run.id != outer.id)
    assert run.parent_id == outer.id


def test_with_the_switch_off_nothing_follows() -> None:
    art.uninstrument()
    try:
        with art.trajectory_scope("run"):
            assert [way(current) for way in WAYS] == [None] * len(WAYS)
    finally:
        art.instrument()


def test_langgraph_tools_in_a_pool_of_their_own_stay_under_their_node(
    api: StubApi, captured: Callable[[], Trajectory], home: Path
) -> None:
    from langgraph.graph import END, START, StateGraph

    pool = ThreadPoolExecutor(1)

    def node(state: dict[str, Any]) -> dict[str, Any]:
        pool.submit(ask, api, "hello").result()
        return {}

    graph = StateGraph(dict)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    with art.trajectory_scope("run"):
        graph.compile().invoke({})
    outside = pool.submit(current).result()
    pool.shutdown()
    node_span, call = (span for span in captured().spans if span.name != "invoke_agent run")
    assert (node_span.name, call.parent_id, outside) == ("invoke_agent node", node_span.span_id, None)
