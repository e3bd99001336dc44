"""A store of an earlier version is brought to this one's form with all that is in it."""

import json
import zlib

import pytest
from alembic import command
from sqlalchemy import select, text

import art_sdk as art
from art_sdk.settings import Settings
from art_sdk.store import Store, checks
from art_sdk.store import tables as t
from art_sdk.store.database import SCHEMA, Database, _create
from art_sdk.store.migrate import alembic_config

from .build import apply, content, end, identity, start


@pytest.fixture
def old_url(empty_url: str) -> str:
    """A store of schema 0002 with two trajectories: one has a short message, one a list of lists."""
    engine = _create(empty_url, create=True)
    with engine.connect().execution_options(art_write=True) as connection, connection.begin():
        command.upgrade(alembic_config(connection), "0002")
        short, long = content({"role": "user", "parts": []}), content("x" * 1000)
        first = content({"after": None, "items": [short.hash]})
        second = content({"after": first.hash, "items": [long.hash] * 20})
        for each in (short, long, first, second):
            row = {"hash": each.hash, "data": zlib.compress(each.data) if len(each.data) > 256 else each.data}
            connection.execute(text("INSERT INTO contents VALUES (:hash, :data)"), row)
        for number, asked in ((1, [short.hash]), (2, second.hash)):
            connection.execute(
                text(
                    "INSERT INTO trajectories (id, name, status, started_at, input, train, details, group_id) "
                    "VALUES (:id, 'desk', 'finished', 1, :input, :yes, '{}', :group)"
                ),
                {"id": identity(number), "input": short.hash, "yes": True, "group": identity(100)},
            )
            spans = text(
                "INSERT INTO spans (trajectory_id, span_id, name, operation, started_at, attributes) "
                "VALUES (:id, 's', 'chat', 'chat', 1, :attributes)"
            )
            attributes = {"art.input.messages": asked, "art.input": short.hash, "gone": "no hash"}
            connection.execute(spans, {"id": identity(number), "attributes": json.dumps(attributes)})
        connection.execute(
            text("INSERT INTO groups (id, size, status, deadline) VALUES (:id, 2, 'ready', 1)"), {"id": identity(100)}
        )
        connection.execute(
            text("INSERT INTO claims (group_id, policy, status, ready_at) VALUES (:id, 'support', 'ready', 1)"),
            {"id": identity(100)},
        )
    engine.dispose()
    return empty_url


def test_all_is_there_afterwards(old_url: str) -> None:
    database = Database(old_url)
    assert database.revision() == SCHEMA
    with database.read() as connection:
        claims = connection.execute(select(t.claims.c.group_id, t.claims.c.status, t.claims.c.priority)).all()
        holdings = connection.execute(select(t.holdings.c.trajectory_id)).scalars().all()
    assert [tuple(row) for row in claims] == [(identity(100), "ready", 0)]
    assert sorted(holdings) == [identity(1)] + [identity(2)] * 4
    store = Store(database)
    assert [len(run.spans[0].attributes["gen_ai.input.messages"]) for run in store.trajectories()] == [21, 1]
    assert [run.excluded for run in store.trajectories()] == [False, False]
    assert list(checks.check(database)) == []
    store.delete(identity(2))
    (left,) = store.trajectories()
    assert left.spans[0].attributes["gen_ai.input.messages"] == [{"role": "user", "parts": []}]
    database.close()


def test_a_process_of_the_earlier_version_goes_on_writing(old_url: str) -> None:
    """It has its statements: columns that it doesn't know have a default, and content without an owner stays."""
    database = Database(old_url)
    with database.write() as connection:
        connection.execute(
            text(
                "INSERT INTO trajectories (id, name, status, started_at, train, details) "
                "VALUES (:id, 'desk', 'finished', 1, :yes, '{}')"
            ),
            {"id": identity(3), "yes": True},
        )
        connection.execute(
            text("INSERT INTO groups (id, size, status, deadline) VALUES (:id, 2, 'open', 1)"), {"id": identity(101)}
        )
    assert Store(database).trajectory(identity(3)).excluded is False
    database.close()


def test_records_are_written_into_a_store_that_was_brought_up(old_url: str) -> None:
    database = Database(old_url)
    with database.write() as connection:
        apply(connection, [start(5), end(5)], journal="a-1", settings=Settings(), now=5)
    assert Store(database).trajectory(identity(5)).status == "finished"
    with pytest.raises(art.StoreError):
        Store(database).trajectory(identity(6))
    database.close()
