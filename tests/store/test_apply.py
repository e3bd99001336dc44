"""Records become the same rows in any order and however often they are applied."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

import art_sdk as art
from art_sdk.capture import spans as names
from art_sdk.capture.records import Record
from art_sdk.settings import Settings
from art_sdk.store import Store
from art_sdk.store import tables as t
from art_sdk.store.database import Database

from .build import SECOND, apply, call, completion, content, end, group, identity, reward, start

Rows = dict[str, set[str]]


class _Undo(Exception):
    pass


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with ExitStack() as stack:
        if request.param == "sqlite":
            path = tmp_path_factory.mktemp("apply") / "art.db"
            shutil.copy(template, path)
            url = f"sqlite:///{path}"
        else:
            url = stack.enter_context(request.getfixturevalue("server").database())
        database = Database(url)
        yield database
        database.close()


def rows_after(database: Database, batches: Sequence[Sequence[Record]]) -> Rows:
    """Every row after the batches, of which nothing stays. Groups of ordinary traffic are named by their members."""
    rows: Rows = {}
    try:
        with database.write() as connection:
            for batch in batches:
                apply(connection, batch, journal="j", settings=Settings(), now=SECOND)
            derived = dict(
                connection.execute(
                    select(t.trajectories.c.group_id, func.min(t.trajectories.c.id))
                    .join(t.groups, t.groups.c.id == t.trajectories.c.group_id)
                    .where(t.groups.c.task_key.is_not(None))
                    .group_by(t.trajectories.c.group_id)
                ).all()
            )
            for table in t.metadata.sorted_tables:
                found = connection.execute(select(table)).mappings()
                rows[table.name] = {
                    repr([(key, derived.get(value, value) if "id" in key else value) for key, value in row.items()])
                    for row in found
                }
            raise _Undo
    except _Undo:
        return rows


RECORDS: list[Record] = [
    content("hello"),
    group(90, 2),
    start(1, **{names.GROUP_ID: identity(90), names.INPUT: content("hello").hash}),
    call(1, "r1"),
    completion(1, "r1"),
    completion(1, "r1", choice=1),
    reward(1, 0.5),
    reward(1, 0.25, key=1),
    end(1, **{names.GROUP_ID: identity(90), names.INPUT: content("hello").hash, names.OUTPUT: content("hello").hash}),
    start(2, **{names.GROUP_ID: identity(90)}),
    end(2, "failed", **{names.GROUP_ID: identity(90)}),
    start(3, **{names.TASK_KEY: identity(7)}),
    reward(3),
    end(3, **{names.TASK_KEY: identity(7)}),
    start(4),
    reward(4, -1.0),
    reward(5),
    completion(6, "r6", policy="other"),
]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations(RECORDS),
    cut=st.integers(0, len(RECORDS)),
    again=st.sets(st.sampled_from(range(len(RECORDS)))),
)
def test_any_order_batches_and_repetition_end_in_the_same_rows(
    shared: Database, order: list[Record], cut: int, again: set[int]
) -> None:
    expected = rows_after(shared, [RECORDS])
    repeated = [order[index] for index in sorted(again)]
    assert rows_after(shared, [order[:cut], order[cut:], repeated]) == expected


def test_each_record_alone_ends_in_the_same_rows(shared: Database) -> None:
    assert rows_after(shared, [[record] for record in reversed(RECORDS)]) == rows_after(shared, [RECORDS])


def test_the_expected_rows_are_there(shared: Database) -> None:
    rows = rows_after(shared, [RECORDS])
    assert {name: len(found) for name, found in rows.items() if found and name != "alembic_version"} == {
        "contents": 1,
        "trajectories": 4,
        "spans": 5,
        "rewards": 5,
        "completions": 3,
        "groups": 2,
        "claims": 2,
    }


def test_an_end_without_its_start_is_the_whole_trajectory(database: Database, write: Callable[..., None]) -> None:
    write(end(1, **{names.INPUT: "h", "note": 3}))
    (run,) = Store(database).trajectories()
    assert (run.name, run.status, run.policy, run.details["note"]) == ("desk", "finished", "support", 3)
    assert run.spans[0].ended_at == 1 + SECOND


def test_a_second_end_changes_no_group(database: Database, write: Callable[..., None]) -> None:
    write(end(1, **{names.TASK_KEY: "k"}))
    (before,) = Store(database).trajectories()
    write(end(1, **{names.TASK_KEY: "k"}))
    (after,) = Store(database).trajectories()
    assert before.group_id == after.group_id


def test_a_start_that_comes_after_the_end_does_not_reopen_it(database: Database, write: Callable[..., None]) -> None:
    write(end(1), start(1))
    write(start(1))
    (run,) = Store(database).trajectories()
    assert run.status == "finished"


def test_tokens_come_back_as_they_were(database: Database, write: Callable[..., None]) -> None:
    write(start(1), completion(1, "r1"))
    (run,) = Store(database).trajectories()
    assert run.completions == (completion(1, "r1"),)


def test_an_episode_of_200_turns_takes_linear_space(stored: Callable[[], Store], home: Path) -> None:
    import httpx

    def answer(request: httpx.Request) -> httpx.Response:
        turn = len(request.read())
        message = {"role": "assistant", "content": f"answer {turn} " + "y" * 200}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return httpx.Response(200, json={"id": f"c{turn}", "model": "m", "choices": choices})

    @art.trajectory
    def episode(turns: int) -> None:
        messages: list[dict[str, str]] = []
        with httpx.Client(transport=httpx.MockTransport(answer)) as client:
            for turn in range(turns):
                messages.append({"role": "user", "content": f"question {turn} " + "x" * 200})
                body = {"model": "m", "messages": messages}
                reply = client.post("http://model/v1/chat/completions", json=body).json()
                messages.append(reply["choices"][0]["message"])

    sizes = []
    for turns in (50, 200):
        episode(turns)
        (run,) = (found for found in stored().trajectories() if found.input == {"turns": turns})
        assert len(run.messages()) == 2 * turns
        with stored().database.read() as connection:
            size = connection.execute(select(func.sum(func.length(t.contents.c.data)))).scalar_one()
        sizes.append(size - sum(sizes))
    # The 50 turns of the first are the beginning of the second: what it adds are 150 more.
    assert sizes[1] < 3.2 * sizes[0]
