"""The store as a queue: groups become ready, are claimed under a lease, and are trained on once.

    group:  open ──(members settled, or deadline)──► ready
    claim:  waiting ──(group ready)──► ready ──claim──► leased ──step recorded──► done
                                         ▲                │
                                         └─(expired, released)

A claim is one policy's share of a group: a group whose members called two policies has two claims.
When a group is ready is decided by `readiness`, which is pure; all the rest here is SQL around it.
"""

import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, exists, func, insert, or_, select, update

from ..capture import spans as names
from ..capture.records import Completion
from ..settings import Settings
from . import tables as t
from .batch import ClaimedGroup, Member
from .database import Database
from .reading import read_completions


@dataclass(frozen=True)
class MemberState:
    """A member as readiness sees it. `awaiting`: calls whose completion has not reached the store."""

    status: str
    rewarded: bool
    awaiting: int

    @property
    def settled(self) -> bool:
        """Nothing more is expected of it."""
        if self.status == "running":
            return False
        return self.status != "finished" or (self.rewarded and not self.awaiting)


@dataclass(frozen=True)
class Readiness:
    status: Literal["open", "ready"]
    check_at: int | None
    """When time alone may change the answer, in nanoseconds since the epoch."""


def readiness(
    members: Sequence[MemberState], *, size: int, closes_at: int | None, deadline: int, now: int
) -> Readiness:
    """Whether a group can be trained on.

    It can when all its members are there and settled. A group announced by `art.rollouts` has all
    when it has `size`; one derived from traffic (`closes_at` is given) also when it has closed.
    After the deadline it is used as it is.
    """
    if now >= deadline:
        return Readiness("ready", None)
    complete = len(members) >= size or (closes_at is not None and now >= closes_at)
    if complete and all(member.settled for member in members):
        return Readiness("ready", None)
    times = [time for time in (closes_at, deadline) if time is not None and time > now]
    return Readiness("open", min(times))


def join_derived_group(
    connection: Connection, trajectory_id: str, task_key: str | None, settings: Settings, now: int
) -> None:
    """Put a trajectory of ordinary traffic into the open group of its task, or begin one."""
    c = t.trajectories.c
    if connection.execute(select(c.group_id).where(c.id == trajectory_id)).scalar() is not None:
        return
    members = select(func.count()).where(c.group_id == t.groups.c.id).scalar_subquery()
    g = t.groups.c
    query = select(g.id).where(g.task_key == task_key, g.status == "open", g.closes_at > now, members < g.size)
    group_id = connection.execute(query.limit(1)).scalar() if task_key else None
    if group_id is None:
        group_id = uuid.uuid4().hex
        closes_at = now + int(settings.group_wait * 1e9)
        connection.execute(
            insert(t.groups).values(
                id=group_id,
                task_key=task_key,
                size=settings.group_size,
                status="open",
                closes_at=closes_at,
                deadline=now + int(settings.group_deadline * 1e9),
                check_at=closes_at,
            )
        )
    connection.execute(update(t.trajectories).where(c.id == trajectory_id).values(group_id=group_id))


def refresh_groups(connection: Connection, group_ids: Iterable[str], now: int) -> None:
    """Decide again whether these groups are ready, and queue their claims."""
    for group_id in sorted(group_ids):
        # Locked, or two writers on Postgres would each miss the member that the other has just settled.
        group = connection.execute(
            select(t.groups).where(t.groups.c.id == group_id, t.groups.c.status == "open").with_for_update()
        ).one_or_none()
        if group is None:
            continue
        _add_claims(connection, group_id)
        state = readiness(
            _members(connection, group_id),
            size=group.size,
            closes_at=group.closes_at,
            deadline=group.deadline,
            now=now,
        )
        connection.execute(
            update(t.groups).where(t.groups.c.id == group_id).values(status=state.status, check_at=state.check_at)
        )
        if state.status == "ready":
            waiting = (t.claims.c.group_id == group_id) & (t.claims.c.status == "waiting")
            connection.execute(update(t.claims).where(waiting).values(status="ready", ready_at=now))


def _members(connection: Connection, group_id: str) -> list[MemberState]:
    c, s = t.trajectories.c, t.spans.c
    answered = select(t.completions.c.response_id).where(t.completions.c.response_id == s.response_id)
    # A version's name in the response says that the gateway made it: its completion is on the way.
    by_gateway = s.attributes["gen_ai.response.model"].as_string().like("%@%")
    awaiting = (
        select(func.count())
        .where(s.trajectory_id == c.id, s.response_id.is_not(None), by_gateway, ~exists(answered))
        .scalar_subquery()
    )
    query = select(c.status, c.reward.is_not(None).label("rewarded"), awaiting.label("awaiting"))
    return [MemberState(*row) for row in connection.execute(query.where(c.group_id == group_id))]


def _add_claims(connection: Connection, group_id: str) -> None:
    c = t.trajectories.c
    member = c.group_id == group_id
    declared = select(c.policy).where(member, c.train, c.policy.is_not(None)).distinct()
    answering = (
        select(t.completions.c.policy)
        .join(t.trajectories, c.id == t.completions.c.trajectory_id)
        .where(member, c.train)
    )
    known = set(connection.execute(select(t.claims.c.policy).where(t.claims.c.group_id == group_id)).scalars())
    policies = set(connection.execute(declared).scalars()) | set(connection.execute(answering.distinct()).scalars())
    for policy in sorted(policies - known):
        connection.execute(insert(t.claims).values(group_id=group_id, policy=policy, status="waiting"))


def queued(database: Database, policy: str, now: int) -> int:
    """How many groups `claim` would find."""
    with database.read() as connection:
        due = connection.execute(
            select(func.count()).select_from(t.groups).where(t.groups.c.status == "open", t.groups.c.check_at <= now)
        ).scalar_one()
    if due:
        with database.write() as connection:
            _refresh_due(connection, now)
    with database.read() as connection:
        return connection.execute(
            select(func.count()).select_from(t.claims).where(_claimable(policy, now))
        ).scalar_one()


def claim(database: Database, policy: str, *, owner: str, limit: int, lease_seconds: float) -> list[ClaimedGroup]:
    """Take up to `limit` ready groups, oldest first. They are this owner's until the lease runs out."""
    now = time.time_ns()
    with database.write() as connection:
        _refresh_due(connection, now)
        query = select(t.claims.c.group_id).where(_claimable(policy, now)).order_by(t.claims.c.ready_at).limit(limit)
        if database.dialect == "postgresql":
            query = query.with_for_update(skip_locked=True)
        group_ids = list(connection.execute(query).scalars())
        connection.execute(
            update(t.claims)
            .where(t.claims.c.policy == policy, t.claims.c.group_id.in_(group_ids))
            .values(status="leased", owner=owner, expires_at=now + int(lease_seconds * 1e9))
        )
        return [_claimed(connection, group_id, policy) for group_id in group_ids]


def renew(database: Database, policy: str, *, owner: str, lease_seconds: float) -> None:
    """Make this owner's leases last `lease_seconds` from now."""
    expires_at = time.time_ns() + int(lease_seconds * 1e9)
    with database.write() as connection:
        connection.execute(update(t.claims).where(_held(policy, owner)).values(expires_at=expires_at))


def release(database: Database, policy: str, *, owner: str) -> None:
    """Give back what this owner holds, for anyone to claim."""
    with database.write() as connection:
        connection.execute(
            update(t.claims).where(_held(policy, owner)).values(status="ready", owner=None, expires_at=None)
        )


def finish_claims(connection: Connection, policy: str, *, owner: str, group_ids: Collection[str], step: int) -> None:
    """Mark claims as done, in the transaction that records the step.

    Raises `LeaseLost` where one is no longer this owner's: the step must not be recorded, another
    worker has the group.
    """
    held = _held(policy, owner) & t.claims.c.group_id.in_(group_ids)
    done = connection.execute(update(t.claims).where(held).values(status="done", step=step))
    if done.rowcount != len(group_ids):
        raise LeaseLost(f"{len(group_ids) - done.rowcount} of {len(group_ids)} groups were claimed by another worker")


class LeaseLost(Exception):
    """A lease ran out while its groups were being trained on."""


def _claimable(policy: str, now: int) -> ColumnElement[bool]:
    c = t.claims.c
    return (c.policy == policy) & or_(c.status == "ready", (c.status == "leased") & (c.expires_at <= now))


def _held(policy: str, owner: str) -> ColumnElement[bool]:
    c = t.claims.c
    return (c.policy == policy) & (c.owner == owner) & (c.status == "leased")


def _refresh_due(connection: Connection, now: int) -> None:
    g = t.groups.c
    due = connection.execute(select(g.id).where(g.status == "open", g.check_at <= now).limit(1000)).scalars()
    refresh_groups(connection, list(due), now)


def _claimed(connection: Connection, group_id: str, policy: str) -> ClaimedGroup:
    c = t.trajectories.c
    rows = connection.execute(
        select(c.id, c.name, c.status, c.reward).where(c.group_id == group_id, c.train).order_by(c.started_at, c.id)
    ).all()
    by_trajectory: dict[str, list[Completion]] = {row.id: [] for row in rows}
    # A call with masked words is not learned from: the model would learn to say the mask's neighbours, or a secret.
    masked = _masked_calls(connection, list(by_trajectory))
    for completion in read_completions(connection, list(by_trajectory), policy):
        if (completion.trajectory_id, completion.span_id) not in masked:
            by_trajectory[completion.trajectory_id or ""].append(completion)
    only_masked = {identity for identity, _ in masked if not by_trajectory[identity]}
    members = [
        Member(row.id, row.name, row.status, row.reward, row.id in only_masked, tuple(by_trajectory[row.id]))
        for row in rows
    ]
    return ClaimedGroup(group_id, policy, tuple(members))


def _masked_calls(connection: Connection, trajectory_ids: list[str]) -> set[tuple[str, str]]:
    s = t.spans.c
    is_masked = s.attributes[names.MASKED].as_boolean()
    query = select(s.trajectory_id, s.span_id).where(s.trajectory_id.in_(trajectory_ids), is_masked)
    return {(row.trajectory_id, row.span_id) for row in connection.execute(query)}
