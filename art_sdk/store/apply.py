"""Journal records become rows.

Invariant: applying any records, in any order, any number of times, ends in the same rows. Each kind
inserts what is new and leaves what is there; only the end of a span overwrites its start, and a longer start a
shorter one.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import JSON, ColumnElement, Connection, Dialect, Table, Text, cast, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from ..capture import spans as names
from ..capture.records import Completion, Content, Group, Record, Reward, SpanEnd, SpanStart
from ..settings import Settings
from . import tables as t
from .queue import join_derived_groups, note_versions, refresh_groups
from .reading import chunks, pack, pack_content


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


def insert_records(connection: Connection, records: Iterable[Record], *, journal: str, settings: Settings) -> Touched:
    """The rows that are the records' own. Where others write at the same time, commit before `derive`."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock_shared({CONTENT_LOCK})"))
    by_kind: dict[type, list[Any]] = {}
    for record in records:
        by_kind.setdefault(type(record), []).append(record)
    starts: list[SpanStart] = by_kind.get(SpanStart, [])
    ends: list[SpanEnd] = by_kind.get(SpanEnd, [])
    rewards: list[Reward] = by_kind.get(Reward, [])
    completions: list[Completion] = by_kind.get(Completion, [])

    over = {(end.trajectory_id, end.span_id) for end in ends}  # an end carries all that its start does
    insert_new(
        connection, t.contents, [{"hash": c.hash, "data": pack_content(c.data)} for c in by_kind.get(Content, ())]
    )
    held = {(c.trajectory_id, c.hash) for c in by_kind.get(Content, ()) if c.trajectory_id is not None}
    insert_new(connection, t.holdings, [{"trajectory_id": owner, "hash": each} for owner, each in sorted(held)])
    insert_new(connection, t.groups, [_announced(group, settings) for group in by_kind.get(Group, ())])
    insert_new(connection, t.trajectories, [_trajectory(s, journal) for s in starts if s.parent_id is None])
    begun_spans = [_span(start) for start in starts if (start.trajectory_id, start.span_id) not in over]
    _write(connection, t.spans, begun_spans, ("attributes",), _more_of_an_open_span)
    upsert(connection, t.trajectories, [_trajectory(e, journal) for e in ends if e.parent_id is None], _ENDING)
    upsert(
        connection, t.spans, [_span(end) for end in ends], ("ended_at", "error", "attributes", "response_id", "name")
    )
    insert_new(connection, t.rewards, [msgspec.structs.asdict(reward) for reward in rewards])
    insert_new(connection, t.completions, [_completion(completion) for completion in completions])

    roots = [end for end in ends if end.parent_id is None]
    ended = {end.trajectory_id for end in roots}
    begun = {start.trajectory_id for start in starts if start.parent_id is None}
    rewarded = {reward.trajectory_id for reward in rewards}
    return Touched(
        summed=rewarded | begun | ended,
        settled=rewarded | ended | {c.trajectory_id for c in completions if c.trajectory_id},
        tasks={
            end.trajectory_id: end.attributes.get(names.TASK_KEY)
            for end in roots
            if names.GROUP_ID not in end.attributes and end.attributes.get(names.TRAIN, True)
        },
        announced={group.id for group in by_kind.get(Group, ())},
    )


def derive(connection: Connection, touched: Touched, settings: Settings, now: int) -> None:
    """What follows from all the rows that are there: sums of rewards, groups, whether they are ready. `now` is in
    nanoseconds since the epoch.

    Two writers each see what the other has committed. So the one that derives last, after both have committed their
    rows, sees the rows of both; the locks see to it that there is a last one.
    """
    if connection.dialect.name == "postgresql":
        _lock(connection, touched)
    _sum_rewards(connection, touched.summed)
    join_derived_groups(connection, touched.tasks, settings, now)
    refresh_groups(connection, _groups_of(connection, touched.settled) | touched.announced, now)
    note_versions(connection, _groups_of(connection, touched.settled | touched.summed) | touched.announced)


_TASK_LOCK = 7310838


def _lock(connection: Connection, touched: Touched) -> None:
    """Hold up other writers that derive from the same trajectories, tasks or groups. All take their locks in this
    order, so none waits in a circle. Tasks share 256 locks: a server has room for few."""
    tasks = sorted({key for key in touched.tasks.values() if key is not None})
    given = {
        "tasks": tasks,
        "tasks_hashed": sorted({zlib.crc32(key.encode()) % 256 for key in tasks}),
        "trajectories": sorted(touched.summed | touched.settled),
        "groups": sorted(touched.announced),
    }
    for statement in (
        f"SELECT pg_advisory_xact_lock({_TASK_LOCK}, task) FROM unnest(CAST(:tasks_hashed AS integer[])) AS task",
        "SELECT 1 FROM trajectories WHERE id = ANY(:trajectories) ORDER BY id FOR UPDATE",
        """SELECT 1 FROM groups WHERE status = 'open' AND (task_key = ANY(:tasks) OR id = ANY(:groups)
           OR id IN (SELECT group_id FROM trajectories WHERE id = ANY(:trajectories))) ORDER BY id FOR UPDATE""",
    ):
        connection.execute(text(statement), given)


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


def _span(span: SpanStart | SpanEnd) -> dict[str, Any]:
    return {
        "trajectory_id": span.trajectory_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "operation": span.attributes.get(names.OPERATION),
        "response_id": span.attributes.get(names.RESPONSE_ID),
        "started_at": span.started_at,
        "ended_at": span.ended_at if isinstance(span, SpanEnd) else None,
        "error": span.error if isinstance(span, SpanEnd) else None,
        "attributes": span.attributes,
    }


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
    """Insert the rows whose key is not there yet."""
    _write(connection, table, rows, ())


def upsert(connection: Connection, table: Table, rows: list[dict[str, Any]], overwrite: Sequence[str]) -> None:
    """Insert the rows; where the key is there, overwrite the columns named."""
    _write(connection, table, rows, tuple(overwrite))


def _write(
    connection: Connection,
    table: Table,
    rows: list[dict[str, Any]],
    overwrite: tuple[str, ...],
    when: Callable[[Any], ColumnElement[bool]] | None = None,
) -> None:
    """All rows have the same columns. They go straight to the driver: the writer shares the agent's interpreter, and
    SQLAlchemy's work on each value would be most of its time."""
    if not rows:
        return
    if connection.dialect.name == "postgresql":  # in one order, or two writers would wait for each other
        rows = sorted(rows, key=itemgetter(*(column.name for column in table.primary_key)))
    columns = tuple(rows[0])
    sql, names = _compiled(connection.dialect, table, columns, overwrite, when)
    for name in columns:
        if isinstance(table.c[name].type, JSON):
            rows = [row | {name: msgspec.json.encode(row[name]).decode()} for row in rows]
    given: Any = rows if names is None else [tuple(map(row.__getitem__, names)) for row in rows]
    connection.exec_driver_sql(sql, given)


@lru_cache(maxsize=64)
def _compiled(
    dialect: Dialect, table: Table, columns: tuple[str, ...], overwrite: tuple[str, ...], when: Any
) -> tuple[str, list[str] | None]:
    """The statement in the driver's SQL, and the order of its parameters, where it takes them by position."""
    made = (postgresql if dialect.name == "postgresql" else sqlite).insert(table)
    if overwrite:
        statement = made.on_conflict_do_update(
            index_elements=list(table.primary_key.columns),
            set_={name: made.excluded[name] for name in overwrite},
            where=when(made.excluded) if when else None,
        )
    else:
        statement = made.on_conflict_do_nothing()
    compiled: Any = statement.compile(dialect=dialect, column_keys=columns)
    return str(compiled), compiled.positiontup


def _more_of_an_open_span(told: Any) -> ColumnElement[bool]:
    """An open span may be told of more than once, each time with more: in whatever order, the most stays."""
    longer = func.length(cast(told.attributes, Text)) > func.length(cast(t.spans.c.attributes, Text))
    return t.spans.c.ended_at.is_(None) & longer
