"""The store as a queue: groups become ready, are claimed under a lease, and are trained on once.

    group:  open ──(members settled, or deadline)──► ready
    claim:  waiting ──(group ready)──► ready ──claim──► leased ──step recorded──► done
                                         ▲                │
                                         └─(expired, released)

A claim is one policy's share of a group: a group whose members called two policies has two claims.
When a group is ready is decided by `readiness`, which is pure; all the rest here is SQL around it. A ready claim
that is too stale for its policy is done without a step, and its trajectories have that for a reason.
"""

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    exists,
    func,
    insert,
    literal,
    select,
    union_all,
    update,
)

from ..capture import spans as names
from ..capture.records import Completion
from ..settings import Settings
from . import tables as t
from .batch import ClaimedGroup, Member
from .database import Database
from .reading import chunks, read_completions
from .reasons import Reason
from .waiting import tell


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


_AGAIN = 60_000_000_000
"""Nanoseconds until a group that is still empty at its deadline is looked at again, at least."""


def readiness(
    members: Sequence[MemberState], *, size: int, closes_at: int | None, deadline: int, now: int
) -> Readiness:
    """Whether a group can be trained on.

    It can when all its members are there and settled. A group announced by `art.rollouts` has all
    when it has `size`; one derived from traffic (`closes_at` is given) also when it has closed.
    After the deadline it is used as it is, unless nobody is there yet: then it is looked at again, each time later.
    """
    if now >= deadline:
        return Readiness("ready", None) if members else Readiness("open", now + max(_AGAIN, now - deadline))
    complete = len(members) >= size or (closes_at is not None and now >= closes_at)
    if complete and all(member.settled for member in members):
        return Readiness("ready", None)
    times = [time for time in (closes_at, deadline) if time is not None and time > now]
    return Readiness("open", min(times))


def join_derived_groups(connection: Connection, tasks: Mapping[str, str | None], settings: Settings, now: int) -> None:
    """Put trajectories of ordinary traffic, each with its task key, into the open group of their task, or begin one."""
    c, g = t.trajectories.c, t.groups.c
    alone: list[str] = []
    for chunk in chunks(sorted(tasks)):
        query = select(c.id).where(c.id.in_(chunk), c.group_id.is_(None)).order_by(c.ended_at, c.id)
        alone += connection.execute(query).scalars()
    if not alone:
        return
    size = select(func.count()).where(c.group_id == g.id).scalar_subquery()
    room: dict[str, tuple[str, int]] = {}
    for chunk in chunks(sorted({key for key in map(tasks.get, alone) if key is not None})):
        query = select(g.task_key, g.id, g.size - size).where(
            g.task_key.in_(chunk), g.status == "open", g.closes_at > now
        )
        room |= {key: (group_id, left) for key, group_id, left in connection.execute(query) if left > 0}
    begun: list[dict[str, Any]] = []
    joined: list[dict[str, str]] = []
    for trajectory_id in alone:
        key = tasks[trajectory_id]
        group_id, left = room.get(key or "", ("", 0))
        if not left:
            group_id, left = uuid.uuid4().hex, settings.group_size
            begun.append(_derived(group_id, key, settings, now))
        if key is not None:
            room[key] = (group_id, left - 1)
        joined.append({"trajectory": trajectory_id, "group": group_id})
    if begun:
        connection.execute(insert(t.groups), begun)
    connection.execute(
        update(t.trajectories).where(c.id == bindparam("trajectory")).values(group_id=bindparam("group")), joined
    )


def _derived(group_id: str, task_key: str | None, settings: Settings, now: int) -> dict[str, Any]:
    closes_at = now + int(settings.group_wait * 1e9)
    return {
        "id": group_id,
        "task_key": task_key,
        "size": settings.group_size,
        "status": "open",
        "closes_at": closes_at,
        "deadline": now + int(settings.group_deadline * 1e9),
        "check_at": closes_at,
    }


def refresh_groups(connection: Connection, group_ids: Collection[str], now: int) -> None:
    """Decide again whether these groups are ready, and queue their claims."""
    for chunk in chunks(sorted(group_ids)):
        _refresh(connection, chunk, now)


def _refresh(connection: Connection, group_ids: Sequence[str], now: int) -> None:
    g = t.groups.c
    # Locked, or two writers on Postgres would each miss the member that the other has just settled.
    query = select(t.groups).where(g.id.in_(group_ids), g.status == "open").order_by(g.id).with_for_update()
    open_groups = {group.id: group for group in connection.execute(query)}
    if not open_groups:
        return
    _add_claims(connection, list(open_groups))
    members = _members(connection, list(open_groups))
    changed: list[dict[str, Any]] = []
    ready: list[str] = []
    for group in open_groups.values():
        state = readiness(
            members[group.id], size=group.size, closes_at=group.closes_at, deadline=group.deadline, now=now
        )
        if (state.status, state.check_at) != (group.status, group.check_at):
            changed.append({"group": group.id, "new_status": state.status, "new_check": state.check_at})
        if state.status == "ready":
            ready.append(group.id)
    if changed:
        statement = update(t.groups).where(g.id == bindparam("group"))
        connection.execute(statement.values(status=bindparam("new_status"), check_at=bindparam("new_check")), changed)
    if ready:
        _queue(connection, ready, now)
        tell(connection)


def _queue(connection: Connection, group_ids: Sequence[str], now: int) -> None:
    """Let the claims of these groups be taken, with the priority that they are sorted by."""
    k = t.claims.c
    priority = select(t.groups.c.priority).where(t.groups.c.id == k.group_id).scalar_subquery()
    waiting = k.group_id.in_(group_ids) & (k.status == "waiting")
    connection.execute(update(t.claims).where(waiting).values(status="ready", ready_at=now, priority=priority))


def note_versions(connection: Connection, group_ids: Collection[str]) -> None:
    """Note the newest version that answered for each policy in these groups: what their claims are sorted by too."""
    c, k, a = t.trajectories.c, t.claims.c, t.completions.c
    answered = (c.group_id == k.group_id) & (a.trajectory_id == c.id) & (a.policy == k.policy)
    newest = select(func.max(a.version)).select_from(t.trajectories).join(t.completions, answered).scalar_subquery()
    for chunk in chunks(sorted(group_ids)):
        open_ones = k.group_id.in_(chunk) & k.status.in_(("waiting", "ready"))
        if connection.dialect.name == "postgresql":  # first, or what it counts could be older than what it overwrites
            locked = select(k.group_id).where(open_ones).order_by(k.group_id, k.policy).with_for_update()
            connection.execute(locked).all()
        connection.execute(update(t.claims).where(open_ones).values(version=newest))


def _members(connection: Connection, group_ids: Sequence[str]) -> dict[str, list[MemberState]]:
    c, s = t.trajectories.c, t.spans.c
    answered = select(t.completions.c.response_id).where(t.completions.c.response_id == s.response_id)
    # A version's name in the response says that the gateway made it: its completion is on the way.
    by_gateway = s.attributes["gen_ai.response.model"].as_string().like("%@%")
    awaiting = (
        select(func.count())
        .where(s.trajectory_id == c.id, s.response_id.is_not(None), by_gateway, ~exists(answered))
        .scalar_subquery()
    )
    query = select(c.group_id, c.status, c.reward.is_not(None), awaiting).where(c.group_id.in_(group_ids))
    found: dict[str, list[MemberState]] = {group_id: [] for group_id in group_ids}
    for group_id, *state in connection.execute(query):
        found[group_id].append(MemberState(*state))
    return found


def _add_claims(connection: Connection, group_ids: Sequence[str]) -> None:
    c, k = t.trajectories.c, t.claims.c
    member = c.group_id.in_(group_ids) & LEARNED_FROM
    declared = select(c.group_id, c.policy).where(member, c.policy.is_not(None)).distinct()
    answering = (
        select(c.group_id, t.completions.c.policy)
        .join(t.completions, c.id == t.completions.c.trajectory_id)
        .where(member)
    )
    wanted = {tuple(row) for row in connection.execute(declared.union(answering))}
    if wanted:
        known = {
            tuple(row) for row in connection.execute(select(k.group_id, k.policy).where(k.group_id.in_(group_ids)))
        }
        rows = [{"group_id": g, "policy": policy, "status": "waiting"} for g, policy in sorted(wanted - known)]
        if rows:
            connection.execute(insert(t.claims), rows)


LEARNED_FROM = t.trajectories.c.train & ~t.trajectories.c.excluded
"""Whether a trajectory may be trained on."""


def queued(database: Database, policy: str, now: int, *, up_to: int | None = None) -> int:
    """How many groups `claim` would find; counting ends at `up_to`."""
    with database.read() as connection:
        due = connection.execute(
            select(func.count()).select_from(t.groups).where(t.groups.c.status == "open", t.groups.c.check_at <= now)
        ).scalar_one()
    if due:
        with database.write() as connection:
            _refresh_due(connection, now)
    with database.read() as connection:
        claimable = union_all(*(select(literal(1)).where(which) for which in (_ready(policy), _run_out(policy, now))))
        return connection.execute(select(func.count()).select_from(claimable.limit(up_to).subquery())).scalar_one()


Order = Literal["oldest", "freshest"]


def claim(
    database: Database,
    policy: str,
    *,
    owner: str,
    limit: int,
    lease_seconds: float,
    order: Order = "oldest",
    oldest_version: int | None = None,
) -> list[ClaimedGroup]:
    """Take up to `limit` ready groups. They are this owner's until the lease runs out.

    What dead workers left comes first, then those of the highest priority; among equals those that are ready for
    longest (`oldest`), or that were answered by the newest version (`freshest`). Groups that no version since
    `oldest_version` has answered are set aside as too stale.
    """
    now = time.time_ns()
    k = t.claims.c
    with database.write() as connection:
        _refresh_due(connection, now)
        if oldest_version is not None:
            _set_aside_stale(connection, policy, oldest_version)
        by = (k.priority.desc(), k.ready_at) if order == "oldest" else (k.priority.desc(), k.version.desc())
        group_ids: list[str] = []
        for which, sorted_by in ((_run_out(policy, now), (k.ready_at,)), (_ready(policy), by)):
            query = select(k.group_id).where(which).order_by(*sorted_by).limit(limit - len(group_ids))
            group_ids += connection.execute(_skip_locked(query, connection)).scalars()
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
        tell(connection)


def finish_claims(connection: Connection, policy: str, *, owner: str, group_ids: Collection[str], step: int) -> None:
    """Mark claims as done, in the transaction that records the step.

    Raises `LeaseLost` where one is no longer this owner's: the step must not be recorded, another
    worker has the group.
    """
    held = _held(policy, owner) & t.claims.c.group_id.in_(group_ids)
    done = connection.execute(update(t.claims).where(held).values(status="done", step=step))
    if done.rowcount != len(group_ids):
        raise LeaseLost(
            f"{len(group_ids) - done.rowcount} of {len(group_ids)} groups are no longer leased to this worker"
        )


class LeaseLost(Exception):
    """A lease ran out while its groups were being trained on."""


_STALE_AT_ONCE = 1000


def _set_aside_stale(connection: Connection, policy: str, oldest_version: int) -> None:
    c, k = t.trajectories.c, t.claims.c
    query = select(k.group_id).where(_ready(policy), k.version < oldest_version).limit(_STALE_AT_ONCE)
    stale = list(connection.execute(_skip_locked(query, connection)).scalars())
    if not stale:
        return
    decided = exists().where(t.outcomes.c.trajectory_id == c.id, t.outcomes.c.policy == policy)
    members = connection.execute(select(c.id).where(c.group_id.in_(stale), LEARNED_FROM, ~decided)).scalars()
    rows = [{"trajectory_id": m, "policy": policy, "tokens": 0, "reason": Reason.TOO_STALE} for m in members]
    if rows:
        connection.execute(insert(t.outcomes), rows)
    connection.execute(update(t.claims).where(k.policy == policy, k.group_id.in_(stale)).values(status="done"))


def _skip_locked(query: "Select[Any]", connection: Connection) -> "Select[Any]":
    """Pass over what another worker is just taking; on SQLite there is no other."""
    return query.with_for_update(skip_locked=True) if connection.dialect.name == "postgresql" else query


def _ready(policy: str) -> ColumnElement[bool]:
    return (t.claims.c.policy == policy) & (t.claims.c.status == "ready")


def _run_out(policy: str, now: int) -> ColumnElement[bool]:
    """Leases of workers that died."""
    c = t.claims.c
    return (c.policy == policy) & (c.status == "leased") & (c.expires_at <= now)


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
        select(c.id, c.name, c.status, c.reward)
        .where(c.group_id == group_id, LEARNED_FROM)
        .order_by(c.started_at, c.id)
    ).all()
    by_trajectory: dict[str, list[Completion]] = {row.id: [] for row in rows}
    # A call with masked words is not learned from: the model would learn to say the mask's neighbours, or a secret.
    masked = _masked_calls(connection, list(by_trajectory))
    for completion in read_completions(connection, list(by_trajectory), policy):
        if (completion.trajectory_id, completion.span_id) not in masked:
            by_trajectory[completion.trajectory_id or ""].append(completion)
    only_masked = {identity for identity, _ in masked if not by_trajectory[identity]}
    by_span = _span_rewards(connection, list(by_trajectory))
    members = [
        Member(r.id, r.name, r.status, r.reward, r.id in only_masked, tuple(by_trajectory[r.id]), by_span[r.id])
        for r in rows
    ]
    return ClaimedGroup(group_id, policy, tuple(members))


def _span_rewards(connection: Connection, trajectory_ids: list[str]) -> dict[str, dict[str, float]]:
    """For each trajectory, what its spans were given."""
    r = t.rewards.c
    found: dict[str, dict[str, float]] = {identity: {} for identity in trajectory_ids}
    query = select(r.trajectory_id, r.span_id, func.sum(r.value).label("given"))
    for row in connection.execute(
        query.where(r.trajectory_id.in_(trajectory_ids), r.span_id.is_not(None)).group_by(r.trajectory_id, r.span_id)
    ):
        found[row.trajectory_id][row.span_id] = row.given
    return found


def _masked_calls(connection: Connection, trajectory_ids: list[str]) -> set[tuple[str, str]]:
    s = t.spans.c
    is_masked = s.attributes[names.MASKED].as_boolean()
    query = select(s.trajectory_id, s.span_id).where(s.trajectory_id.in_(trajectory_ids), is_masked)
    return {(row.trajectory_id, row.span_id) for row in connection.execute(query)}
