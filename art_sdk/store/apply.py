"""Journal records become rows.

Invariant: applying any records, in any order, any number of times, ends in the same rows. Each kind
inserts what is new and leaves what is there; only the end of a span overwrites its start, and a longer start a
shorter one.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Float,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    cast,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from ..capture import spans as names
from ..capture.records import Completion, Content, Group, Record, Reward, SpanEnd, SpanStart
from ..settings import Settings
from . import tables as t
from .queue import join_derived_groups, note_versions, refresh_groups
from .reading import chunks, pack, pack_contents, parts

Statement = tuple[str, tuple[Any, ...]]
"""SQL and the values for its marks."""


@dataclass(frozen=True)
class Touched:
    """What records say something new about."""

    summed: set[str]
    """Trajectories whose reward may have changed."""
    settled: set[str]
    """Trajectories whose group may be ready now."""
    tasks: dict[str, str | None]
    """Trajectories of ordinary traffic that have ended, with their task key."""
    announced: set[str]
    """Groups."""


CONTENT_LOCK = 7310839
"""Shared by who writes content and what refers to it, alone for who deletes content: Postgres's advisory lock."""


@dataclass(frozen=True)
class Prepared:
    """Records as the driver takes them: all that can be done before the store is asked."""

    statements: list[Statement]
    touched: Touched


def prepare(records: Iterable[Record], *, dialect: str, journal: str, settings: Settings) -> Prepared:
    """Raises `TypeError` or `ValueError` at a record that no row can hold."""
    by_kind: dict[type, list[Any]] = {}
    for record in records:
        by_kind.setdefault(type(record), []).append(record)
    starts: list[SpanStart] = by_kind.get(SpanStart, [])
    ends: list[SpanEnd] = by_kind.get(SpanEnd, [])
    rewards: list[Reward] = by_kind.get(Reward, [])
    completions: list[Completion] = by_kind.get(Completion, [])
    contents: list[Content] = by_kind.get(Content, [])

    over = {(end.trajectory_id, end.span_id): end for end in ends}  # an end carries all that its start does
    last = list(over.values())  # one statement may not write a row twice
    open_ = [start for start in starts if (start.trajectory_id, start.span_id) not in over]
    held = {(c.trajectory_id, c.hash) for c in contents if c.trajectory_id is not None}
    by_hash = sorted(held, key=itemgetter(1))  # as the larger of the table's two trees has them
    packed = pack_contents({content.hash: content.data for content in contents})
    begun = [_trajectory(start, journal) for start in open_ if start.parent_id is None]
    ended = [_trajectory(end, journal) for end in last if end.parent_id is None]
    statements = [
        _statements(dialect, t.contents, ("hash", "data"), packed),
        _statements(dialect, t.holdings, ("trajectory_id", "hash"), by_hash),
        _of_dicts(dialect, t.groups, [_announced(group, settings) for group in by_kind.get(Group, ())]),
        _of_dicts(dialect, t.trajectories, begun),
        _statements(dialect, t.spans, _SPAN, _one_each(map(_span, open_)), ("attributes",), _more_of_an_open_span),
        _of_dicts(dialect, t.trajectories, ended, _ENDING),
        _statements(dialect, t.spans, _SPAN, [_span(end) for end in last], _SPAN_ENDING),
        _of_dicts(dialect, t.rewards, [msgspec.structs.asdict(reward) for reward in rewards]),
        _of_dicts(dialect, t.completions, [_completion(completion) for completion in completions]),
    ]

    roots = [end for end in ends if end.parent_id is None]
    over_now = {end.trajectory_id for end in roots}
    rewarded = {reward.trajectory_id for reward in rewards}
    touched = Touched(
        summed=rewarded | over_now | {start.trajectory_id for start in starts if start.parent_id is None},
        settled=rewarded | over_now | {c.trajectory_id for c in completions if c.trajectory_id},
        tasks={
            end.trajectory_id: end.attributes.get(names.TASK_KEY)
            for end in roots
            if names.GROUP_ID not in end.attributes and end.attributes.get(names.TRAIN, True)
        },
        announced={group.id for group in by_kind.get(Group, ())},
    )
    return Prepared(list(chain.from_iterable(statements)), touched)


def insert(connection: Connection, prepared: Prepared) -> Touched:
    """Write the rows that are the records' own. Where others write at the same time, commit before `derive`."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock_shared({CONTENT_LOCK})"))
    _execute(connection, prepared.statements)
    return prepared.touched


def derive(connection: Connection, touched: Touched, settings: Settings, now: int) -> None:
    """What follows from all the rows that are there: sums of rewards, groups, whether they are ready. `now` is in
    nanoseconds since the epoch.

    Two writers each see what the other has committed. So the one that derives last, after both have committed their
    rows, sees the rows of both; the locks see to it that there is a last one.
    """
    there = _lock(connection, touched) if connection.dialect.name == "postgresql" else touched.summed
    _sum_rewards(connection, touched.summed & there)
    join_derived_groups(connection, touched.tasks, settings, now)
    refresh_groups(connection, _groups_of(connection, touched.settled) | touched.announced, now)
    note_versions(connection, _groups_of(connection, touched.settled | touched.summed) | touched.announced)


_TASK_LOCK = 7310838


def _lock(connection: Connection, touched: Touched) -> set[str]:
    """Hold up other writers that derive from the same trajectories, tasks or groups. All take their locks in this
    order, so none waits in a circle. Tasks share 256 locks: a server has room for few.

    Returns the trajectories that are there. One that appears only now is not locked and must be left alone: whoever
    wrote it derives after us, and a sum of ours could overwrite a later one.
    """
    tasks = sorted({key for key in touched.tasks.values() if key is not None})
    given = {
        "tasks": tasks,
        "tasks_hashed": sorted({zlib.crc32(key.encode()) % 256 for key in tasks}),
        "trajectories": sorted(touched.summed | touched.settled),
        "groups": sorted(touched.announced),
    }
    hashed = "unnest(CAST(:tasks_hashed AS integer[])) AS task"
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_TASK_LOCK}, task) FROM {hashed}"), given)
    trajectories = "SELECT id FROM trajectories WHERE id = ANY(:trajectories) ORDER BY id FOR UPDATE"
    there = set(connection.execute(text(trajectories), given).scalars())
    groups = """SELECT 1 FROM groups WHERE status = 'open' AND (task_key = ANY(:tasks) OR id = ANY(:groups)
        OR id IN (SELECT group_id FROM trajectories WHERE id = ANY(:trajectories))) ORDER BY id FOR UPDATE"""
    connection.execute(text(groups), given)
    return there


_ENDING = ("status", "ended_at", "input", "output", "error", "policy", "details")


def _trajectory(root: SpanStart | SpanEnd, journal: str) -> dict[str, Any]:
    a = dict(root.attributes)
    ended = isinstance(root, SpanEnd)
    columns = {
        "id": root.trajectory_id,
        "name": a.pop(names.TRAJECTORY_NAME, root.name),
        "policy": a.pop(names.POLICY, None),
        "status": a.pop(names.STATUS, "finished" if ended else "running"),
        "started_at": root.started_at,
        "ended_at": root.ended_at if isinstance(root, SpanEnd) else None,
        "input": a.pop(names.INPUT, None),
        "output": a.pop(names.OUTPUT, None),
        "error": root.error if isinstance(root, SpanEnd) else None,
        "group_id": a.pop(names.GROUP_ID, None),
        "task_key": a.pop(names.TASK_KEY, None),
        "parent_id": a.pop(names.PARENT_TRAJECTORY, None),
        "train": a.pop(names.TRAIN, True),
        "journal": journal,
    }
    if not isinstance(columns["train"], bool):  # SQLite would take anything
        raise TypeError(f"{names.TRAIN} must be a bool, got {columns['train']!r}")
    if metadata := a.pop(names.METADATA, None):
        a["metadata"] = msgspec.json.decode(metadata)
    return columns | {"details": {key: value for key, value in a.items() if not key.startswith("gen_ai.")}}


def _one_each(begun: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of the starts of one span the one that tells most, as `_more_of_an_open_span` has it."""
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for span in begun:
        known = found.get(span[:2])
        if known is None or len(_json(span[-1])) > len(_json(known[-1])):
            found[span[:2]] = span
    return list(found.values())


_SPAN = tuple(column.name for column in t.spans.columns)
_SPAN_ENDING = ("ended_at", "error", "attributes", "response_id", "name")


def _span(span: SpanStart | SpanEnd) -> tuple[Any, ...]:
    """In the order of `_SPAN`."""
    ended_at, error = (span.ended_at, span.error) if isinstance(span, SpanEnd) else (None, None)
    return (
        span.trajectory_id,
        span.span_id,
        span.parent_id,
        span.name,
        span.attributes.get(names.OPERATION),
        span.attributes.get(names.RESPONSE_ID),
        span.started_at,
        ended_at,
        error,
        span.attributes,
    )


def _completion(completion: Completion) -> dict[str, Any]:
    return msgspec.structs.asdict(completion) | {
        "prompt_ids": pack("I", completion.prompt_ids),
        "token_ids": pack("I", completion.token_ids),
        "logprobs": pack("f", completion.logprobs),
    }


def _announced(group: Group, settings: Settings) -> dict[str, Any]:
    deadline = group.created_at + int(settings.group_deadline * 1e9)
    return {
        "id": group.id,
        "task_key": None,
        "size": group.size,
        "status": "open",
        "closes_at": None,
        "deadline": deadline,
        "check_at": deadline,
        "priority": group.priority,
    }


def _sum_rewards(connection: Connection, trajectory_ids: set[str]) -> None:
    total = select(func.sum(t.rewards.c.value)).where(t.rewards.c.trajectory_id == t.trajectories.c.id)
    for chunk in chunks(sorted(trajectory_ids)):
        connection.execute(
            update(t.trajectories).where(t.trajectories.c.id.in_(chunk)).values(reward=total.scalar_subquery())
        )


def _groups_of(connection: Connection, trajectory_ids: set[str]) -> set[str]:
    c = t.trajectories.c
    found: set[str] = set()
    for chunk in chunks(sorted(trajectory_ids)):
        query = select(c.group_id).where(c.id.in_(chunk), c.group_id.is_not(None)).distinct()
        found.update(connection.execute(query).scalars())
    return found


def insert_new(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert the rows whose key is not there yet. All have the same columns."""
    _execute(connection, _of_dicts(connection.dialect.name, table, rows))


def upsert(connection: Connection, table: Table, rows: list[dict[str, Any]], overwrite: Sequence[str]) -> None:
    """Insert the rows; where the key is there, overwrite the columns named. All have the same columns."""
    _execute(connection, _of_dicts(connection.dialect.name, table, rows, tuple(overwrite)))


def _execute(connection: Connection, statements: Iterable[Statement]) -> None:
    for statement, given in statements:
        connection.exec_driver_sql(statement, given)


def _of_dicts(
    dialect: str, table: Table, rows: list[dict[str, Any]], overwrite: tuple[str, ...] = ()
) -> Iterator[Statement]:
    columns = tuple(rows[0]) if rows else ()
    return _statements(dialect, table, columns, [tuple(map(row.__getitem__, columns)) for row in rows], overwrite)


def _statements(
    dialect: str,
    table: Table,
    columns: tuple[str, ...],
    rows: list[tuple[Any, ...]],
    overwrite: tuple[str, ...] = (),
    when: Callable[[Any], ColumnElement[bool]] | None = None,
) -> Iterator[Statement]:
    """The rows go straight to the driver, many in a statement: the writer shares the agent's interpreter. SQLAlchemy's
    work on each value would be most of its time, and a statement for each row would ask for Python's lock each time.
    """
    if not rows:
        return
    if dialect == "postgresql":
        key = itemgetter(*(columns.index(column.name) for column in table.primary_key))
        rows = sorted(rows, key=key)  # in one order, or two writers would wait for each other
        statement = _from_arrays(table, columns, overwrite, when)
        is_bytes = [isinstance(table.c[name].type, LargeBinary) for name in columns]
        for some in parts(rows, _ROWS_AT_ONCE):
            arrays = zip(is_bytes, zip(*some, strict=True), strict=True)
            yield statement, tuple(list(array) if binary else _json(array).decode() for binary, array in arrays)
        return
    for index, name in enumerate(columns):
        if isinstance(table.c[name].type, JSON):
            rows = [(*row[:index], _json(row[index]).decode(), *row[index + 1 :]) for row in rows]
    begin, marks, end = _of_many_rows(table, columns, overwrite, when)
    for some in parts(rows, _MOST_PARAMETERS // len(columns)):
        yield f"{begin}{', '.join([marks] * len(some))}{end}", tuple(chain.from_iterable(some))


_ROWS_AT_ONCE = 1024
"""In one of Postgres's statements."""
_MOST_PARAMETERS = 32_766
"""SQLite's bound for one statement."""

_json = msgspec.json.Encoder().encode
_KINDS = {Text: "text", String: "text", JSON: "json", BigInteger: "int8", Integer: "int4"}
_KINDS |= {Float: "float8", Boolean: "bool", LargeBinary: "bytea"}


@lru_cache(maxsize=64)
def _of_many_rows(
    table: Table, columns: tuple[str, ...], overwrite: tuple[str, ...], when: Any
) -> tuple[str, str, str]:
    """SQLite's statement: what stands before the rows, the marks of one row, and what follows."""
    names = ", ".join(f'"{name}"' for name in columns)
    marks = f"({', '.join('?' * len(columns))})"
    return f'INSERT INTO "{table.name}" ({names}) VALUES ', marks, _on_conflict(sqlite, table, overwrite, when)


@lru_cache(maxsize=64)
def _from_arrays(table: Table, columns: tuple[str, ...], overwrite: tuple[str, ...], when: Any) -> str:
    """Postgres's statement, which takes an array for each column: the same one however many rows there are. The arrays
    are JSON, which is written faster than the driver's; bytes go as they are, for written out they would be longer."""
    names = ", ".join(f'"{name}"' for name in columns)
    kinds = {name: _KINDS[type(table.c[name].type)] for name in columns}
    arrays = {"bytea": "unnest(%b::bytea[])", "json": "json_array_elements(%s::json)"}
    given = ", ".join(arrays.get(kind, "json_array_elements_text(%s::json)") for kind in kinds.values())
    shown = ", ".join(f'"{name}"::{kind}' for name, kind in kinds.items())
    rows = f"SELECT {shown} FROM ROWS FROM ({given}) AS given ({names})"
    return f'INSERT INTO "{table.name}" ({names}) {rows}{_on_conflict(postgresql, table, overwrite, when)}'


def _on_conflict(engine: Any, table: Table, overwrite: tuple[str, ...], when: Any) -> str:
    made = engine.insert(table)
    if overwrite:
        statement = made.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_={name: made.excluded[name] for name in overwrite},
            where=when(made.excluded) if when else None,
        )
    else:
        statement = made.on_conflict_do_nothing()
    _, found, clause = str(statement.compile(dialect=engine.dialect())).partition(" ON CONFLICT")
    assert found, "the clause has no parameters: all of it is SQL"
    return found + clause


def _more_of_an_open_span(told: Any) -> ColumnElement[bool]:
    """An open span may be told of more than once, each time with more: in whatever order, the most stays."""
    longer = func.length(cast(told.attributes, Text)) > func.length(cast(t.spans.c.attributes, Text))
    return t.spans.c.ended_at.is_(None) & longer
