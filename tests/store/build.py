"""Records as a process that captures and a gateway would write them."""

from collections.abc import Iterable
from typing import Any

import pytest
from sqlalchemy import Connection, text

from art_sdk.capture import spans as names
from art_sdk.capture.content import to_content
from art_sdk.capture.records import Completion, Content, Group, Record, Reward, SpanEnd, SpanStart
from art_sdk.settings import Settings
from art_sdk.store.apply import derive, insert, prepare
from art_sdk.store.database import Database

SECOND = 1_000_000_000

on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)


def identity(number: int) -> str:
    return f"{number:032x}"


def span_identity(number: int) -> str:
    return f"{number:016x}"


def root(number: int, **attributes: Any) -> dict[str, Any]:
    return {names.TRAJECTORY_NAME: "desk", names.TRAIN: True, names.POLICY: "support", **attributes}


def start(number: int, **attributes: Any) -> SpanStart:
    return SpanStart(
        identity(number), span_identity(number), None, "invoke_agent desk", number, root(number, **attributes)
    )


def end(number: int, status: str = "finished", **attributes: Any) -> SpanEnd:
    given = root(number, **attributes) | {names.STATUS: status}
    error = "ValueError: no" if status == "failed" else None
    return SpanEnd(
        identity(number), span_identity(number), None, "invoke_agent desk", number, number + SECOND, given, error
    )


def call(number: int, response_id: str, model: str = "support@3", **attributes: Any) -> SpanEnd:
    """An LLM call that the gateway answered."""
    given = {
        names.OPERATION: names.CHAT,
        names.RESPONSE_ID: response_id,
        names.RESPONSE_MODEL: model,
        **attributes,
    }
    span_id = response_id.encode().hex().zfill(16)
    return SpanEnd(
        identity(number), span_id, span_identity(number), "chat support", number + 1, number + 2, given, None
    )


def reward(number: int, value: float = 1.0, key: int = 0) -> Reward:
    return Reward(identity(1000 * number + key), identity(number), None, "reward", value, "code", number)


def completion(number: int, response_id: str, policy: str = "support", choice: int = 0) -> Completion:
    return Completion(
        response_id=response_id,
        choice=choice,
        policy=policy,
        version=3,
        prompt_ids=[1, 2, 3],
        token_ids=[4, 5],
        logprobs=[-0.5, -0.25],
        sampling={"temperature": 1.0},
        finish_reason="stop",
        created_at=number,
        trajectory_id=identity(number),
        span_id=span_identity(number),
    )


def group(number: int, size: int, created_at: int = 0) -> Group:
    return Group(identity(number), size, created_at)


def apply(connection: Connection, records: Iterable[Record], *, journal: str, settings: Settings, now: int) -> None:
    """Write the records in one transaction, as a writer does that is alone."""
    prepared = prepare(records, dialect=connection.dialect.name, journal=journal, settings=settings)
    derive(connection, insert(connection, prepared), settings, now)


def cut_others(database: Database) -> None:
    """Postgres ends all connections to the store but the one that asks."""
    with database.write() as connection:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        connection.execute(text(others + " AND pid <> pg_backend_pid()"))


def content(value: Any) -> Content:
    return to_content(value)[0]
