"""`@art.trajectory` records each run and is otherwise not there."""

import asyncio
import inspect
import os
import random
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace
from opentelemetry.sdk.trace import TracerProvider

import art_sdk as art
from art_sdk import settings
from art_sdk.capture import journal
from art_sdk.store import Store
from art_sdk.store.reading import Trajectory

Stored = Callable[[], Store]


def only(store: Store, **where: Any) -> Trajectory:
    (found,) = store.trajectories(**where)
    return found


# What the function does is what the caller sees


def test_a_sync_function_is_recorded_with_its_inputs_and_result(stored: Stored) -> None:
    @art.trajectory
    def handle(ticket: str, *, urgent: bool = False) -> dict[str, Any]:
        return {"reply": ticket.upper()}

    assert handle("help", urgent=True) == {"reply": "HELP"}
    run = only(stored())
    assert (run.name, run.status, run.error) == (
        "test_a_sync_function_is_recorded_with_its_inputs_and_result.handle",
        "finished",
        None,
    )
    assert run.input == {"ticket": "help", "urgent": True}
    assert run.output == {"reply": "HELP"}
    assert run.ended_at is not None
    assert run.ended_at >= run.started_at


async def test_an_async_function_is_recorded_with_its_inputs_and_result(stored: Stored) -> None:
    @art.trajectory
    async def handle(ticket: str) -> str:
        await asyncio.sleep(0)
        return ticket[::-1]

    assert await handle("abc") == "cba"
    run = only(stored())
    assert (run.status, run.input, run.output) == ("finished", {"ticket": "abc"}, "cba")


def test_methods_class_methods_and_static_methods_are_recorded_without_self(stored: Stored) -> None:
    class Agent:
        @art.trajectory
        def method(self, x: int) -> tuple[Any, int]:
            return self, x

        @classmethod
        @art.trajectory
        def on_class(cls, x: int) -> tuple[Any, int]:
            return cls, x

        @staticmethod
        @art.trajectory
        def static(x: int) -> int:
            return x

    agent = Agent()
    assert agent.method(1) == (agent, 1)
    assert Agent.on_class(2) == (Agent, 2)
    assert agent.on_class(3) == (Agent, 3)
    assert Agent.static(4) == 4
    assert [run.input for run in stored().trajectories()] == [{"x": 4}, {"x": 3}, {"x": 2}, {"x": 1}]


def test_the_very_object_that_was_returned_comes_back(home: Path) -> None:
    thing = object()

    @art.trajectory
    def handle() -> object:
        return thing

    assert handle() is thing


def test_the_very_exception_that_was_raised_comes_back(stored: Stored) -> None:
    fault = KeyError("order 7")

    def deep() -> None:
        raise fault

    @art.trajectory
    def handle() -> None:
        deep()

    with pytest.raises(KeyError) as caught:
        handle()
    assert caught.value is fault
    assert fault.__context__ is None
    assert fault.__cause__ is None
    assert [frame.name for frame in traceback.extract_tb(fault.__traceback__)][-2:] == ["handle", "deep"]
    run = only(stored())
    assert (run.status, run.error, run.output) == ("failed", "KeyError: 'order 7'", None)


async def test_the_very_exception_of_an_async_function_comes_back(stored: Stored) -> None:
    fault = ValueError("no")

    @art.trajectory
    async def handle() -> None:
        raise fault

    with pytest.raises(ValueError) as caught:
        await handle()
    assert caught.value is fault
    assert only(stored()).status == "failed"


def test_an_exception_that_cannot_be_printed_comes_back_too(stored: Stored) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @art.trajectory
    def handle() -> None:
        raise Broken

    with pytest.raises(Broken):
        handle()
    run = only(stored())
    assert (run.status, run.error) == ("failed", "Broken: (no message)")


def test_an_error_text_that_is_no_utf8_is_stored_readably(stored: Stored) -> None:
    @art.trajectory
    def handle() -> None:
        raise OSError("no such file: \udcff\0")

    with pytest.raises(OSError):
        handle()
    assert only(stored()).error == "OSError: no such file: \\udcff\\0"


def test_queries_and_passwords_of_urls_in_an_error_are_not_stored(stored: Stored, home: Path) -> None:
    @art.trajectory
    def handle() -> None:
        raise RuntimeError("403 for 'https://user:hunter2@api.example/v1/chat?key=sk-hunter2&x=1' (see https://docs)")

    with pytest.raises(RuntimeError):
        handle()
    assert only(stored()).error == "RuntimeError: 403 for 'https://***@api.example/v1/chat?***' (see https://docs)"
    assert all(b"hunter2" not in file.read_bytes() for file in home.rglob("*") if file.is_file())


def test_metadata_and_signature_of_the_function_are_kept() -> None:
    def handle(ticket: str, *, n: int = 3) -> list[str]:
        """Answers."""
        return [ticket] * n

    handle.extra = 1  # type: ignore[attr-defined]
    wrapped: Any = art.trajectory(handle)
    assert (wrapped.__name__, wrapped.__qualname__, wrapped.__doc__) == ("handle", handle.__qualname__, "Answers.")
    assert wrapped.__module__ == __name__
    assert wrapped.__wrapped__ is handle
    assert wrapped.extra == 1
    assert inspect.signature(wrapped) == inspect.signature(handle)
    assert not inspect.iscoroutinefunction(wrapped)


def test_an_async_function_still_says_that_it_is_one() -> None:
    @art.trajectory
    async def handle() -> None: ...

    assert inspect.iscoroutinefunction(handle)


def test_a_wrong_call_raises_the_functions_own_type_error(stored: Stored) -> None:
    @art.trajectory
    def handle(ticket: str) -> None: ...

    with pytest.raises(TypeError, match=r"handle\(\) missing 1 required positional argument: 'ticket'"):
        handle()  # type: ignore[call-arg]
    assert only(stored()).status == "failed"


def test_parameters_may_have_any_name(stored: Stored) -> None:
    @art.trajectory
    def handle(function: int, live: int, options: int, args: int, kwargs: int, hook: int) -> int:
        return function + live + options + args + kwargs + hook

    assert handle(function=1, live=2, options=3, args=4, kwargs=5, hook=6) == 21
    assert only(stored()).output == 21


# Refusals


@pytest.mark.parametrize(
    "thing",
    [3, "handle", dict, property(lambda self: None)],
    ids=["number", "name", "class", "property"],
)
def test_what_is_no_function_is_refused(thing: Any) -> None:
    with pytest.raises(art.ConfigError, match="takes a function"):
        art.trajectory(thing)


def test_an_async_reward_function_of_a_sync_function_is_refused() -> None:
    async def score(result: Any) -> float:
        return 1.0

    with pytest.raises(art.ConfigError, match="async reward function needs an async function"):

        @art.trajectory(reward=score)
        def handle() -> None: ...


# Options


def test_name_policy_and_metadata_are_stored(stored: Stored) -> None:
    @art.trajectory(name="desk", policy="support", metadata={"tenant": "a", "limits": {"n": 3}, "when": object})
    def handle() -> None: ...

    handle()
    run = only(stored(), name="desk", policy="support", status="finished")
    assert run.details["metadata"]["tenant"] == "a"
    assert run.details["metadata"]["limits"] == {"n": 3}


def test_the_policy_comes_from_the_environment_unless_the_decorator_names_one(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_POLICY", "general")
    settings.reset()

    @art.trajectory
    def one() -> None: ...

    @art.trajectory(policy="special")
    def two() -> None: ...

    one()
    two()
    assert [run.policy for run in stored().trajectories()] == ["special", "general"]


def test_the_same_task_has_the_same_key_in_every_run(stored: Stored) -> None:
    @art.trajectory
    def handle(task: Any) -> None: ...

    for task in ({"a": 1, "b": {1, 2}}, {"a": 1, "b": {2, 1}}, {"a": 2}):
        handle(task)
    different, again, first = (run.group_id for run in stored().trajectories())
    assert first == again
    assert first != different


# Rewards from a function


def test_a_reward_function_gets_the_result_and_the_arguments(stored: Stored) -> None:
    def score(result: str, ticket: str, *, n: int) -> float:
        assert art.current_trajectory() is not None
        return len(result) + len(ticket) + n

    @art.trajectory(reward=score)
    def handle(ticket: str, *, n: int) -> str:
        return ticket * n

    assert handle("ab", n=3) == "ababab"
    assert only(stored()).reward == 11.0


async def test_an_async_reward_function_is_awaited(stored: Stored) -> None:
    async def score(result: int) -> bool:
        await asyncio.sleep(0)
        return result == 1

    @art.trajectory(reward=score)
    async def handle() -> int:
        return 1

    assert await handle() == 1
    assert only(stored()).reward == 1.0


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        (lambda result: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda result: "good", "RewardError: a reward must be a number, got 'good' (str)"),
        (lambda result: float("nan"), "RewardError: a reward must be a finite number"),
        (lambda result, more: 1.0, "TypeError: "),
    ],
)
def test_a_faulty_reward_function_costs_the_reward_and_nothing_else(
    stored: Stored, caplog: pytest.LogCaptureFixture, faulty: Any, said: str
) -> None:
    @art.trajectory(reward=faulty)
    def handle() -> str:
        return "fine"

    assert handle() == "fine"
    run = only(stored())
    assert (run.status, run.reward, run.output) == ("finished", None, "fine")
    assert run.details["art.reward.error"].startswith(said)
    assert "its reward function raised" in caplog.text


def test_a_function_that_raises_gets_no_reward_from_its_reward_function(stored: Stored) -> None:
    @art.trajectory(reward=lambda result: 1.0)
    def handle() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        handle()
    assert only(stored()).reward is None


def test_the_trajectory_ends_even_where_its_reward_function_is_interrupted(stored: Stored) -> None:
    def score(result: Any) -> float:
        raise KeyboardInterrupt

    @art.trajectory(reward=score)
    def handle() -> None: ...

    with pytest.raises(KeyboardInterrupt):
        handle()
    assert only(stored()).status == "finished"


# The current trajectory


def test_a_decorated_function_called_inside_another_is_a_trajectory_of_its_own(stored: Stored) -> None:
    seen: list[Any] = []

    @art.trajectory(name="inner")
    def inner() -> None:
        art.reward(1.0)
        seen.append(art.current_trajectory())

    @art.trajectory(name="outer")
    def outer() -> None:
        seen.append(art.current_trajectory())
        inner()
        seen.append(art.current_trajectory())

    assert art.current_trajectory() is None
    outer()
    assert art.current_trajectory() is None
    before, within, after = seen
    assert before is after
    assert before.id != within.id
    store = stored()
    assert only(store, name="inner").parent_id == only(store, name="outer").id == before.id
    assert only(store, name="inner").id == within.id
    assert only(store, name="inner").reward == 1.0
    assert only(store, name="outer").reward is None
    assert len(only(store, name="outer").spans) == 1


async def test_concurrent_tasks_do_not_mix(stored: Stored) -> None:
    @art.tool
    async def look_up(key: int) -> int:
        await asyncio.sleep(random.random() / 100)
        return key

    @art.trajectory
    async def handle(key: int) -> int:
        await look_up(key)
        art.reward(key)
        return await look_up(key)

    assert await asyncio.gather(*map(handle, range(20))) == list(range(20))
    runs = list(stored().trajectories())
    assert len(runs) == 20
    for run in runs:
        assert run.reward == run.output == run.input["key"]
        assert [span.attributes["gen_ai.tool.call.arguments"] for span in run.spans[1:]] == [{"key": run.output}] * 2


def test_concurrent_threads_do_not_mix(stored: Stored) -> None:
    barrier = threading.Barrier(4)

    @art.trajectory
    def handle(key: int) -> int:
        barrier.wait(5)
        art.reward(key)
        return key

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(handle, range(8))) == list(range(8))
    assert {(run.input["key"], run.reward) for run in stored().trajectories()} == {(n, float(n)) for n in range(8)}


async def test_a_cancelled_task_is_recorded_as_cancelled(stored: Stored) -> None:
    started = asyncio.Event()

    @art.trajectory
    async def handle() -> None:
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(handle())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert only(stored()).status == "cancelled"


def test_a_keyboard_interrupt_is_recorded_as_cancelled(stored: Stored) -> None:
    @art.trajectory
    def handle() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handle()
    assert only(stored()).status == "cancelled"


async def test_a_task_that_outlives_its_trajectory_adds_nothing_to_it_but_rewards(stored: Stored) -> None:
    go, tasks = asyncio.Event(), []

    @art.tool
    def late_tool() -> str:
        return "late"

    async def background() -> str:
        await go.wait()
        art.reward(0.5, name="late")
        return late_tool()

    @art.trajectory
    async def handle() -> None:
        tasks.append(asyncio.create_task(background()))

    await handle()
    go.set()
    assert await tasks[0] == "late"
    run = only(stored())
    assert len(run.spans) == 1
    assert run.reward == 0.5


# Others' OpenTelemetry


@pytest.fixture
def users_provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    provider = TracerProvider()
    monkeypatch.setattr(otel_trace, "_TRACER_PROVIDER", provider)
    return provider


def test_the_users_current_span_and_provider_are_left_alone(stored: Stored, users_provider: TracerProvider) -> None:
    tracer = users_provider.get_tracer("user")

    @art.tool
    def look_up() -> Any:
        return otel_trace.get_current_span()

    @art.trajectory
    def handle() -> list[Any]:
        return [otel_trace.get_current_span(), look_up()]

    with tracer.start_as_current_span("theirs") as span:
        assert handle() == [span, span]
        assert otel_trace.get_current_span() is span
    assert otel_trace.get_tracer_provider() is users_provider
    assert only(stored()).id != f"{span.get_span_context().trace_id:032x}"


def test_samplers_and_limits_of_the_users_tracing_do_not_apply(tmp_path: Path) -> None:
    import json
    import subprocess
    import sys

    code = """
import json
import art_sdk as art
@art.trajectory(metadata={str(n): n for n in range(200)})
def handle(): raise RuntimeError("x" * 500)
try: handle()
except RuntimeError: pass
art.flush()
with art.open_store() as store:
    (run,) = store.trajectories()
    print(json.dumps([run.status, len(run.error), len(run.details["metadata"])]))
"""
    environment = os.environ | {
        "ART_HOME": str(tmp_path),
        "OTEL_TRACES_SAMPLER": "always_off",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "10",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "2",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["failed", 514, 200]


def test_seeding_random_repeats_no_id(stored: Stored) -> None:
    @art.trajectory
    def handle() -> None:
        random.seed(1)

    for _ in range(3):
        random.seed(1)
        handle()
    assert len(list(stored().trajectories())) == 3


# Capture that fails


@pytest.fixture
def no_journal(home: Path) -> Path:
    (home / "journal").write_text("a file where the folder should be")
    return home


def test_a_journal_that_cannot_be_opened_breaks_nothing_and_is_said_once(
    no_journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @art.tool
    def look_up(key: str) -> str:
        return key

    @art.trajectory(reward=lambda result, ticket: 0.5)
    def handle(ticket: str) -> str:
        trajectory = art.current_trajectory()
        assert trajectory is not None
        art.reward(1.0)
        art.reward(1.0, trajectory_id=trajectory.id)
        return look_up(ticket)

    assert [handle(ticket) for ticket in "abc"] == ["a", "b", "c"]
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 1
    assert "no journal can be opened" in said[0]


def test_capture_begins_once_the_journal_can_be_opened(no_journal: Path, stored: Stored) -> None:
    @art.trajectory
    def handle() -> None: ...

    handle()
    (no_journal / "journal").unlink()
    handle()
    assert only(stored()).status == "finished"


def test_a_wrong_variable_breaks_no_agent(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ART_GROUP_SIZE", "many")
    settings.reset()

    @art.trajectory
    def handle() -> int:
        art.reward(1.0)
        return 5

    assert handle() == 5
    assert "ART_GROUP_SIZE='many'" in caplog.text


def test_an_argument_that_cannot_be_described_breaks_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Hostile(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("keep out")

    @art.tool
    def look_up(thing: Any) -> Any:
        return thing

    @art.trajectory
    def handle(thing: Any) -> Any:
        art.reward(1.0)
        return look_up(thing)

    hostile = Hostile()
    assert handle(hostile) is hostile
    assert "keep out" in caplog.text


def test_a_result_that_cannot_be_described_costs_only_itself(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Hostile(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("keep out")

    @art.trajectory
    def handle() -> Any:
        return Hostile()

    handle()
    assert art.flush(10)
    with art.open_store() as store:
        run = only(store)
    assert (run.status, run.output) == ("finished", None)


def test_nothing_is_attached_after_a_failed_start(no_journal: Path) -> None:
    @art.trajectory
    def handle() -> None: ...

    before = otel_context.get_current()
    handle()
    assert otel_context.get_current() == before
    assert journal.current() is None
