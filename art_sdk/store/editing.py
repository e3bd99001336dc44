"""What people do to trajectories afterwards: label them, keep them out of training, delete them.

A content belongs to every trajectory that said it (`holdings`) and goes with the last of them. Deleting leaves alone
what is under way: a trajectory that still runs, and one whose group a worker holds.
"""

import math
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, exists, select, text, update

from ..capture.records import Reward
from ..errors import RewardError, StoreError
from ..settings import Settings
from . import tables as t
from .apply import CONTENT_LOCK, derive, insert, insert_new, prepare
from .database import Database
from .reading import chunks, parts

_AT_ONCE = 200


@dataclass(frozen=True)
class Deleted:
    """`busy` were left: they still run, or a worker holds their group."""

    trajectories: int
    busy: int


def add_reward(
    database: Database, trajectory_id: str, value: float, *, name: str, source: str, settings: Settings
) -> None:
    """Add to a trajectory's reward, as `art.reward` does while it runs."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RewardError(f"a reward must be a finite number, got {value!r}")
    now = time.time_ns()
    record = Reward(uuid.uuid4().hex, trajectory_id, None, name, float(value), source, now)
    with database.write() as connection:
        _check_known(connection, trajectory_id, database.name)
        touched = insert(connection, prepare([record], dialect=connection.dialect.name, journal="", settings=settings))
        derive(connection, touched, settings, now)


def add_tags(database: Database, trajectory_id: str, tags: Sequence[str]) -> None:
    if any(not tag.strip() for tag in tags):
        raise StoreError("a tag must not be empty")
    with database.write() as connection:
        _check_known(connection, trajectory_id, database.name)
        insert_new(connection, t.tags, [{"trajectory_id": trajectory_id, "tag": tag} for tag in tags])


def remove_tags(database: Database, trajectory_id: str, tags: Sequence[str]) -> None:
    with database.write() as connection:
        _check_known(connection, trajectory_id, database.name)
        connection.execute(delete(t.tags).where(t.tags.c.trajectory_id == trajectory_id, t.tags.c.tag.in_(tags)))


def set_excluded(database: Database, trajectory_id: str, excluded: bool) -> None:
    with database.write() as connection:
        _check_known(connection, trajectory_id, database.name)
        connection.execute(update(t.trajectories).where(t.trajectories.c.id == trajectory_id).values(excluded=excluded))


def set_priority(database: Database, group_id: str, priority: int) -> None:
    with database.write() as connection:
        changed = connection.execute(update(t.groups).where(t.groups.c.id == group_id).values(priority=priority))
        if not changed.rowcount:
            raise StoreError(f"no group in {database.name} has the id {group_id!r}")
        connection.execute(update(t.claims).where(t.claims.c.group_id == group_id).values(priority=priority))


def delete_trajectories(database: Database, trajectory_ids: Iterable[str]) -> Deleted:
    """Delete trajectories and all that only they held, some at a time, so that writers get their turns.

    On SQLite what is deleted is overwritten in the file at once.
    """
    gone = busy = 0
    for chunk in parts(trajectory_ids, _AT_ONCE):
        with database.write() as connection:
            deleted = _delete(connection, chunk)
        gone += deleted.trajectories
        busy += deleted.busy
    if gone and database.dialect == "sqlite":
        with database.unbound() as connection:  # or the write-ahead log would keep a copy
            connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    return Deleted(gone, busy)


def _delete(connection: Connection, trajectory_ids: Sequence[str]) -> Deleted:
    c, k = t.trajectories.c, t.claims.c
    if connection.dialect.name == "postgresql":
        # A writer may be about to refer to content that is there: it has gone on, or it waits.
        connection.execute(text(f"SELECT pg_advisory_xact_lock({CONTENT_LOCK})"))
    leased = exists().where(k.group_id == c.group_id, k.status == "leased")
    known = connection.execute(
        select(c.id, c.group_id, ((c.status == "running") | leased).label("busy"))
        .where(c.id.in_(trajectory_ids))
        .order_by(c.id)  # as writers lock them
        .with_for_update(of=t.trajectories)
    ).all()
    ids = [row.id for row in known if not row.busy]
    for table in (t.spans, t.rewards, t.completions, t.outcomes, t.tags):
        connection.execute(delete(table).where(table.c.trajectory_id.in_(ids)))
    connection.execute(delete(t.trajectories).where(c.id.in_(ids)))
    held = delete(t.holdings).where(t.holdings.c.trajectory_id.in_(ids)).returning(t.holdings.c.hash)
    for hashes in chunks(sorted(set(connection.execute(held).scalars()))):
        unheld = t.contents.c.hash.in_(hashes) & ~exists().where(t.holdings.c.hash == t.contents.c.hash)
        connection.execute(delete(t.contents).where(unheld))
    groups = {row.group_id for row in known if not row.busy and row.group_id is not None}
    for chunk in chunks(sorted(groups)):
        over = (t.groups.c.status == "ready") | (
            t.groups.c.deadline < time.time_ns()
        )  # an open one may get members yet
        empty = t.groups.c.id.in_(chunk) & over & ~exists().where(c.group_id == t.groups.c.id)
        connection.execute(delete(t.groups).where(empty))  # its claims go with it
    return Deleted(len(ids), len(known) - len(ids))


def _check_known(connection: Connection, trajectory_id: str, store: str) -> None:
    if connection.execute(select(t.trajectories.c.id).where(t.trajectories.c.id == trajectory_id)).first() is None:
        raise StoreError(f"no trajectory in {store} has the id {trajectory_id!r}")
