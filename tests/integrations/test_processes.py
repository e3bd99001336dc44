"""The trajectory follows work into child processes, however they are started."""

import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from stub_api import StubApi

import art_sdk as art
from art_sdk import lifecycle, settings
from art_sdk.capture import spans
from art_sdk.capture.redaction import set_mask
from art_sdk.store import Store, open_store
from art_sdk.store.reading import Span, Trajectory

METHODS = ["fork", "spawn", "forkserver"]
pytestmark = [
    pytest.mark.slow,  # processes that start Python anew
    pytest.mark.usefixtures("home"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
]


def current(_: Any = None) -> str | None:
    """The id of the trajectory that this code is in."""
    live = art.current_trajectory()
    return live.id if live else None


def ask(url: str, words: str) -> None:
    httpx.post(f"{url}/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": words}]})


def ask_and_vanish(url: str) -> None:
    ask(url, "hello")
    os._exit(0)


def tell(queue: Any) -> None:
    queue.put(current())


def give_reward() -> None:
    art.reward(0.5)


def fail() -> None:
    raise ValueError("no")


@art.trajectory
def inner() -> str | None:
    return current()


def tool_and_call(run: Trajectory) -> tuple[Span, Span]:
    tool, call = (span for span in run.spans if span.operation != "invoke_agent")
    return tool, call


@pytest.fixture(autouse=True)
def fork_server() -> Iterator[None]:
    """A fork server keeps the environment that it was started in: each test has its own."""
    yield
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def everything(home: Path) -> Callable[[], Store]:
    """The store with what this process and its dead children captured: the next process drains theirs."""

    def read() -> Store:
        assert lifecycle.shutdown(10)
        art.init()
        assert lifecycle.flush(10)
        assert not list((home / "journal").glob("*.new"))
        return open_store()

    return read


@pytest.mark.parametrize("method", METHODS)
def test_a_call_in_a_child_process_belongs_to_the_trajectory_and_the_span_at_its_start(
    api: StubApi, everything: Callable[[], Store], method: str
) -> None:
    @art.tool
    def search() -> None:
        child = multiprocessing.get_context(method).Process(target=ask_and_vanish, args=(api.openai_url,))
        child.start()
        child.join()
        assert child.exitcode == 0

    with art.trajectory_scope("run"):
        search()
    (run,) = everything().trajectories()
    tool, call = tool_and_call(run)
    assert (run.status, call.operation, call.parent_id) == ("finished", "chat", tool.span_id)
    assert call.attributes["gen_ai.output.messages"]


class Asker(multiprocessing.get_context("spawn").Process):  # type: ignore[misc, name-defined]
    def __init__(self, url: str) -> None:
        super().__init__(name="mine", daemon=True)
        self.url = url

    def run(self) -> None:
        ask(self.url, "hello")


def test_a_process_class_with_its_own_run_is_followed_too_and_stays_as_it_was(
    api: StubApi, everything: Callable[[], Store]
) -> None:
    with art.trajectory_scope("run"):
        asker = Asker(api.openai_url)
        asker.start()
        assert "run" not in vars(asker)
        asker.join()
        assert (asker.name, asker.daemon, asker.exitcode) == ("mine", True, 0)
    (run,) = everything().trajectories()
    assert [span.operation for span in run.spans] == ["invoke_agent", "chat"]


@pytest.mark.parametrize("method", METHODS)
def test_a_process_pool_places_each_item_where_it_was_submitted(method: str) -> None:
    with art.trajectory_scope("a") as a:
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method))
        assert pool.submit(current).result() == a.id
    with pool:
        with art.trajectory_scope("b") as b:
            assert pool.submit(current).result() == b.id
            assert list(pool.map(current, [1, 2])) == [b.id, b.id]
        assert pool.submit(current).result() is None


@pytest.mark.parametrize("method", METHODS)
def test_a_multiprocessing_pool_places_each_item_where_it_was_submitted(method: str) -> None:
    with art.trajectory_scope("a") as a:
        pool = multiprocessing.get_context(method).Pool(1)
        assert pool.apply(current) == a.id
    with pool:
        with art.trajectory_scope("b") as b:
            assert pool.apply_async(func=current).get() == b.id
            assert pool.map(current, [1, 2]) == [b.id, b.id]
            assert pool.starmap_async(current, [(1,), (2,)]).get() == [b.id, b.id]
            assert list(pool.imap(current, [1])) == list(pool.imap_unordered(current, [1])) == [b.id]
        assert pool.map(current, [1]) == [None]


def test_a_pool_forked_inside_a_graphs_node_is_not_in_that_node_for_ever() -> None:
    from langgraph.graph import END, START, StateGraph

    pools: list[Any] = []
    found: list[Any] = []

    def node(state: dict[str, Any]) -> dict[str, Any]:
        executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
        pools.extend([executor, multiprocessing.get_context("fork").Pool(1)])
        found.extend([pools[0].submit(current).result(), pools[1].apply(current), current()])
        return {}

    graph = StateGraph(dict)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    with art.trajectory_scope("a") as a:
        graph.compile().invoke({})
        assert found == [a.id] * 3
        with art.trajectory_scope("b") as b:
            assert [pools[0].submit(current).result(), pools[1].apply(current)] == [b.id, b.id]
        with spans.carried(None):
            assert [pools[0].submit(current).result(), pools[1].apply(current)] == [None, None]
    pools[0].shutdown()
    pools[1].terminate()


def test_many_trajectories_in_one_process_pool_at_once_do_not_mix() -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        waiting = []
        for _ in range(20):
            with art.trajectory_scope("run") as run:
                waiting.append((run.id, [pool.submit(current) for _ in range(3)]))
        for identity, futures in waiting:
            assert [future.result() for future in futures] == [identity] * 3


def test_under_fork_a_lambda_is_run_as_ever() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with art.trajectory_scope("run") as run:
        child = context.Process(target=lambda: queue.put(current()))
        child.start()
        assert queue.get() == run.id
        child.join()


def test_what_cannot_be_pickled_fails_as_it_does_without_us() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool, art.trajectory_scope("run"):
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            pool.submit(lambda: 1).result()
        child = multiprocessing.get_context("spawn").Process(target=lambda: 1)
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            child.start()
        assert "run" not in vars(child)


def test_what_the_function_raises_comes_out_as_it_does_without_us() -> None:
    context = multiprocessing.get_context("fork")
    with art.trajectory_scope("run"):
        with ProcessPoolExecutor(1, mp_context=context) as executor, pytest.raises(ValueError, match="no"):
            executor.submit(fail).result()
        with context.Pool(1) as pool, pytest.raises(ValueError, match="no"):
            pool.apply(fail)
        child = context.Process(target=sys.exit, args=(3,))
        child.start()
        child.join()
        assert child.exitcode == 3


@pytest.mark.parametrize("method", METHODS)
def test_a_reward_in_a_child_is_the_trajectorys(everything: Callable[[], Store], method: str) -> None:
    with art.trajectory_scope("run"):
        child = multiprocessing.get_context(method).Process(target=give_reward)
        child.start()
        child.join()
        assert child.exitcode == 0
    (run,) = everything().trajectories()
    assert run.reward == 0.5


@pytest.mark.parametrize("method", METHODS)
def test_a_reward_in_a_child_of_a_trajectory_that_is_not_sampled_is_no_error(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("ART_SAMPLE_RATE", "0")
    settings.reset()
    context = multiprocessing.get_context(method)
    with art.trajectory_scope("run"), ProcessPoolExecutor(1, mp_context=context) as pool:
        child = context.Process(target=give_reward)
        child.start()
        child.join()
        assert child.exitcode == 0
        pool.submit(give_reward).result()


def test_a_decorated_function_in_a_child_is_a_trajectory_with_this_one_as_its_parent(
    everything: Callable[[], Store],
) -> None:
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with pool, art.trajectory_scope("outer") as outer:
        identity = pool.submit(inner).result()
    runs = {run.id: run for run in everything().trajectories()}
    assert set(runs) == {outer.id, identity}
    assert runs[identity].parent_id == outer.id


@pytest.mark.parametrize("method", METHODS)
def test_outside_a_trajectory_a_child_is_outside_too(method: str) -> None:
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=tell, args=(queue,))
    child.start()
    assert queue.get() is None
    child.join()


@pytest.mark.parametrize("method", METHODS)
def test_a_child_keeps_nothing_that_its_parent_would_have_masked(
    api: StubApi, everything: Callable[[], Store], method: str
) -> None:
    art.init(mask=lambda value: "masked")
    try:
        with art.trajectory_scope("run"):
            child = multiprocessing.get_context(method).Process(target=ask, args=(api.openai_url, "hello"))
            child.start()
            child.join()
    finally:
        set_mask(None)
    (run,) = everything().trajectories()
    (call,) = _calls(run)
    assert call.attributes["art.masked"]
    assert "hello" not in str(call.attributes["gen_ai.input.messages"])


def test_what_a_forked_child_makes_of_a_span_is_not_in_it(everything: Callable[[], Store]) -> None:
    @art.tool
    def search() -> str:
        child = os.fork()
        if child == 0:
            raise ValueError("in the child")
        os.waitpid(child, 0)
        return "found"

    parent = os.getpid()
    try:
        with art.trajectory_scope("run"):
            search()
    except ValueError:
        if os.getpid() != parent:
            os._exit(0)
        raise
    (run,) = everything().trajectories()
    (tool,) = (span for span in run.spans if span.operation == "execute_tool")
    assert (run.status, tool.error, tool.attributes["gen_ai.tool.call.result"]) == ("finished", None, "found")


_FORK = """
import os, sys
import httpx
import art_sdk as art

def ask(words):
    body = {{"model": "m", "messages": [{{"role": "user", "content": words}}]}}
    httpx.post("{url}/chat/completions", json=body)

@art.tool
def search():
    return os.fork()

with art.trajectory_scope("run") as run:
    child = search()
    if child == 0:
        ask("child")
    else:
        os.waitpid(child, 0)
        ask("parent")
        run.output = "parent's"
if child == 0:
    {end}
"""


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
def test_after_os_fork_both_write_to_the_trajectory_and_the_parent_alone_ends_it(
    api: StubApi, everything: Callable[[], Store], end: str
) -> None:
    code = _FORK.format(url=api.openai_url, end=end)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = everything().trajectories()
    said = [span.attributes["gen_ai.input.messages"][0]["parts"][0]["content"] for span in _calls(run)]
    assert (run.status, run.output, sorted(said)) == ("finished", "parent's", ["child", "parent"])


def _calls(run: Trajectory) -> list[Span]:
    return [span for span in run.spans if span.operation == "chat"]
