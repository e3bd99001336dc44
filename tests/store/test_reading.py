"""What the store shows of a trajectory beyond its rows."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from cli_runner import invoke

from art_sdk.capture import spans as names
from art_sdk.capture.records import SpanEnd
from art_sdk.store import Store
from art_sdk.store.database import Database
from art_sdk.store.reading import Trajectory

from .build import completion, content, end, identity, reward, span_identity, start


def chat(number: int, at: int, asks: tuple[str, ...] = (), told: dict[str, str] | None = None) -> list[Any]:
    """An LLM call at time `at` that asks for tools and is told results, by the calls' ids."""
    calls = [{"type": "tool_call", "id": call, "name": call.upper(), "arguments": {"n": 1}} for call in asks]
    results = [{"type": "tool_call_response", "id": call, "response": text} for call, text in (told or {}).items()]
    answer, question = ({"role": "assistant", "parts": calls}, {"role": "tool", "parts": results})
    attributes = {
        names.OPERATION: names.CHAT,
        names.INPUT_MESSAGES: [content(question).hash],
        names.OUTPUT_MESSAGES: [content(answer).hash],
    }
    span = SpanEnd(identity(number), f"{at:016x}", span_identity(number), "chat m", at, at + 1, attributes)
    return [content(question), content(answer), span]


def tool(number: int, at: int, call: str, result: str, name: str = "") -> list[Any]:
    attributes = {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL_CALL_ID: call,
        names.TOOL_NAME: name,
        names.TOOL_RESULT: content(result).hash,
    }
    span = SpanEnd(identity(number), f"{at:016x}", span_identity(number), "execute_tool", at, at + 1, attributes)
    return [content(result), span]


def test_a_tool_call_that_never_ran_is_seen_as_such(database: Database, write: Callable[..., None]) -> None:
    write(
        start(1),
        *chat(1, 10, asks=("ran", "unknown", "forgotten")),
        *tool(1, 20, "ran", "fine"),
        *chat(1, 30, told={"ran": "fine", "unknown": "no such tool"}),
        end(1),
    )
    (run,) = Store(database).trajectories()
    assert [(call.id, call.name, call.state, call.result) for call in run.tool_calls] == [
        ("ran", "RAN", "ran", "fine"),
        ("unknown", "UNKNOWN", "answered", "no such tool"),
        ("forgotten", "FORGOTTEN", "never ran", None),
    ]
    shown = invoke("traces", run.id, "--store", database.url)
    assert "FORGOTTEN  never ran" in shown
    assert "UNKNOWN  answered" in shown
    assert "RAN  ran" not in shown


def numbers(found: Iterator[Trajectory]) -> set[int]:
    return {int(run.id, 16) for run in found}


def test_filters(database: Database, write: Callable[..., None]) -> None:
    write(
        *(start(n) for n in range(1, 6)),
        *(reward(n, n / 10) for n in range(1, 4)),
        *chat(2, 20, asks=("c",)),
        *tool(2, 21, "c", "fine", name="look_up"),
        *(completion(n, f"r{n}") for n in (1, 4)),
        completion(5, "r5", policy="writer"),
        end(1),
        end(3, "failed"),
    )
    find = Store(database).trajectories
    assert numbers(find()) == {1, 2, 3, 4, 5}
    assert numbers(find(status="finished")) == {1}
    assert numbers(find(name="desk", policy="writer")) == {5} | numbers(find(policy="writer"))
    assert numbers(find(version=3)) == {1, 4, 5}
    assert numbers(find(version=3, policy="support")) == {1, 4}
    assert numbers(find(version=2)) == set()
    assert numbers(find(min_reward=0.2)) == {2, 3}
    assert numbers(find(max_reward=0.1)) == {1}
    assert numbers(find(min_reward=0.15, max_reward=0.25)) == {2}
    assert numbers(find(tool="look_up")) == {2}
    assert numbers(find(tool="look%")) == set()
    assert numbers(find(error="ValueError")) == {3}
    assert numbers(find(error="%")) == set()
    epoch = datetime.fromtimestamp(0, UTC)
    assert numbers(find(since=epoch)) == {1, 2, 3, 4, 5}
    assert numbers(find(until=epoch)) == set()


def test_a_store_is_read_in_parts(database: Database, write: Callable[..., None]) -> None:
    write(*(start(n) for n in range(1, 451)))
    assert [int(run.id, 16) for run in Store(database).trajectories()] == list(range(450, 0, -1))
