"""The statements that run all the time find their rows by an index, whatever the size of the store."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Select, event, select

from art_sdk.store import Store, steps
from art_sdk.store import tables as t
from art_sdk.store.database import Database
from art_sdk.store.queue import claim, queued, release, renew

from .build import call, completion, end, group, identity, reward, start

Write = Callable[..., None]
GROUPS = 400


@pytest.fixture
def filled(database: Database, write: Write) -> Database:
    """Enough rows for Postgres to prefer an index, in all states."""
    steps.register_policy(database, "support", "base")
    records: list[Any] = []
    for number in range(1, GROUPS + 1):
        in_group = {"art.group.id": identity(10_000 + number // 2)}
        records += [start(number, **in_group), call(number, f"r{number}"), completion(number, f"r{number}")]
        records += [end(number, **in_group), reward(number), group(10_000 + number // 2, 2, time.time_ns())]
    write(*records)
    if database.dialect == "postgresql":
        with database.unbound() as connection:
            connection.exec_driver_sql("ANALYZE")
    return database


@contextmanager
def scanned(database: Database) -> Iterator[set[str]]:
    """The tables that were read from end to end by what runs in the block."""
    found: set[str] = set()
    statements: list[tuple[str, Any]] = []
    names = {table.name for table in t.metadata.sorted_tables}

    def note(_: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
        if re.match(r"SELECT|UPDATE|DELETE|INSERT", statement.lstrip()) and " " in statement:
            statements.append((statement, (parameters[0] if many and parameters else parameters)))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    with database.read() as connection:
        if database.dialect == "postgresql":
            # The tables are small here: what it does where it can't do without, is what it does with large ones.
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for statement, parameters in statements:
            if "pg_" in statement:
                continue
            if database.dialect == "postgresql":
                plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
                found |= set(re.findall(r'"Node Type": "Seq Scan".*?"Relation Name": "(\w+)"', json.dumps(plan)))
            else:
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                steps_of = [str(row[3]).split() for row in rows]
                found |= {words[1] for words in steps_of if words[0] == "SCAN" and "USING" not in words}
    assert statements, "nothing was asked"
    found &= names


def sorts(database: Database, statement: "Select[Any]") -> bool:
    """Whether all that match are sorted before the first is given."""
    sql = str(statement.compile(database.engine, compile_kwargs={"literal_binds": True}))
    with database.read() as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
            return "Sort" in json.dumps(connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}").scalar_one())
        return any("TEMP B-TREE" in str(row[3]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}"))


def test_the_head_of_the_queue_and_the_first_page_come_in_order_from_an_index(filled: Database) -> None:
    k, c = t.claims.c, t.trajectories.c
    ready = select(k.group_id).where(k.policy == "support", k.status == "ready").limit(32)
    assert not sorts(filled, ready.order_by(k.priority.desc(), k.ready_at))
    assert not sorts(filled, ready.order_by(k.priority.desc(), k.version.desc()))
    assert not sorts(filled, select(c.id).order_by(c.started_at.desc(), c.id.desc()).limit(20))
    assert not sorts(filled, select(c.id).where(c.name == "a").order_by(c.started_at.desc(), c.id.desc()).limit(20))
    assert sorts(filled, select(c.id).order_by(c.error).limit(20))


@pytest.mark.parametrize("order", ["oldest", "freshest"])
def test_claiming_renewing_and_finishing(filled: Database, order: Any) -> None:
    with scanned(filled) as tables:
        queued(filled, "support", time.time_ns(), up_to=32)
        claimed = claim(filled, "support", owner="w", limit=32, lease_seconds=60, order=order, oldest_version=1)
        renew(filled, "support", owner="w", lease_seconds=60)
        given = {"outcomes": [], "metrics": {}, "started_at": 1, "version": None, "path": None, "note": "none"}
        steps.record_step(filled, "support", owner="w", groups=claimed, **given)  # type: ignore[arg-type]
        release(filled, "support", owner="w")
    assert len(claimed) == 32
    assert tables <= {"policies"}  # of which there are few


def test_writing_what_journals_bring(filled: Database, write: Write) -> None:
    in_group = {"art.group.id": identity(9)}
    with scanned(filled) as tables:
        write(group(9, 1, time.time_ns()), start(9001, **in_group), call(9001, "r9001"), completion(9001, "r9001"))
        write(reward(9001), end(9001, **in_group))
        write(start(9002), end(9002, **{"art.task.key": "a" * 32}))
    assert tables == set()


def test_the_first_page_and_one_trajectory(filled: Database) -> None:
    store = Store(filled)
    with scanned(filled) as tables:
        for filters in ({}, {"name": "desk"}, {"version": 3}, {"tag": "good"}, {"policy": "support"}):
            list(store.trajectories(limit=20, **filters))  # type: ignore[arg-type]
        run = store.trajectory(identity(7))
        assert run.spans
        assert run.completions
        assert run.rewards
        assert run.standing
        assert run.tags == ()
    assert tables == set()


def test_deleting_one(filled: Database) -> None:
    with scanned(filled) as tables:
        Store(filled).delete(identity(7))
    assert tables == set()
