"""Why: what happened to one trajectory from its capture to its training, and what became of a policy's in numbers."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, exists, func, select

from ..capture import spans as names
from . import tables as t
from .database import Database
from .queue import LEARNED_FROM
from .reading import Trajectory
from .reasons import Reason


@dataclass(frozen=True)
class Event:
    """Something that happened at a time, in nanoseconds since the epoch, or that is so now (None)."""

    at: int | None
    what: str


def story(database: Database, run: Trajectory) -> list[Event]:
    """What happened to a trajectory, in order of time; last, what is so now."""
    with database.read() as connection:
        events = [*_captured(connection, run), *_grouped(connection, run), *_trained(connection, run)]
    return sorted(events, key=lambda event: (event.at is None, event.at or 0))


def _captured(connection: Connection, run: Trajectory) -> Iterator[Event]:
    s = t.spans.c
    yield Event(run.started_at, f"{run.name} began")
    rows = connection.execute(select(s.operation, s.error.is_not(None)).where(s.trajectory_id == run.id)).all()
    calls = Counter("LLM" if o in names.LLM_OPERATIONS else "tool" for o, _ in rows if o in _CALLS)
    did = f"{_count(calls['LLM'], 'LLM call')} and {_count(calls['tool'], 'tool call')}"
    if run.ended_at is None:
        yield Event(None, f"{run.status}, with {did} so far")
    else:
        error = f": {run.error.splitlines()[0]}" if run.error else ""
        yield Event(run.ended_at, f"{run.status} after {(run.ended_at - run.started_at) / 1e9:.3g} s, {did}{error}")
    r = t.rewards.c
    for reward in connection.execute(select(t.rewards).where(r.trajectory_id == run.id)):
        part = " on one span" if reward.span_id else ""
        yield Event(reward.created_at, f"reward {reward.value:g}{part} ({reward.name}, from {reward.source})")
    k = t.completions.c
    answers = select(k.policy, k.version, func.count(), func.max(k.created_at)).group_by(k.policy, k.version)
    answered = connection.execute(answers.where(k.trajectory_id == run.id)).all()
    for policy, version, count, at in answered:
        yield Event(at, f"{policy}@{version} answered, {_count(count, 'completion')} with tokens")
    if not answered:
        yield Event(None, "none of its calls went through a gateway, so it has no tokens to train on")


def _grouped(connection: Connection, run: Trajectory) -> Iterator[Event]:
    if not run.train or run.excluded:
        reason = Reason.EXCLUDED if run.train else Reason.EVALUATION
        yield Event(None, f"not for training: {reason.meaning}")
    if run.group_id is None:
        return
    c, g, k = t.trajectories.c, t.groups.c, t.claims.c
    members = connection.execute(select(func.count()).where(c.group_id == run.group_id)).scalar_one()
    group = connection.execute(select(t.groups).where(g.id == run.group_id)).one_or_none()
    if group is None:
        yield Event(None, f"its group {run.group_id} was never announced")
        return
    of_size = f" of {group.size}" if group.task_key is None else ""
    yield Event(None, f"in group {run.group_id}, {members}{of_size} members, {group.status}")
    if group.status == "open":
        unrewarded = select(func.count()).where(c.group_id == run.group_id, c.reward.is_(None))
        missing = connection.execute(unrewarded).scalar_one()
        latest = _when(group.deadline)
        yield Event(None, f"its group waits, {missing} of its members have no reward; until {latest} at the latest")
    for claim in connection.execute(select(t.claims).where(k.group_id == run.group_id)):
        if claim.ready_at is not None:
            yield Event(claim.ready_at, f"its group was ready for {claim.policy}")
        if claim.status == "leased":
            yield Event(None, f"claimed for {claim.policy} by {claim.owner} until {_when(claim.expires_at)}")
        elif claim.status == "ready":
            yield Event(None, f"waits for a step of {claim.policy}")


def _trained(connection: Connection, run: Trajectory) -> Iterator[Event]:
    o, s, v = t.outcomes.c, t.steps.c, t.versions.c
    query = select(t.outcomes, s.ended_at).outerjoin(t.steps, (s.policy == o.policy) & (s.step == o.step))
    for outcome in connection.execute(query.where(o.trajectory_id == run.id)):
        if outcome.step is None:
            reason = Reason(outcome.reason)
            yield Event(None, f"set aside for {outcome.policy}, {reason}: {reason.meaning}")
            continue
        step = f"step {outcome.step} of {outcome.policy}"
        if outcome.reason is None:
            made = f"{outcome.policy}@{outcome.version}"
            learned = f"{step} trained on {_count(outcome.tokens, 'token')}, advantage {outcome.advantage or 0:+.3g}"
            yield Event(outcome.ended_at, f"{learned}, and made {made}")
            this = (v.policy == outcome.policy) & (v.version == outcome.version)
            version = connection.execute(select(t.versions).where(this)).one()
            if version.served_at is not None:
                yield Event(version.served_at, f"{made} went live")
            else:
                yield Event(None, f"{made} is {version.status}" + (f": {version.note}" if version.note else ""))
        else:
            reason = Reason(outcome.reason)
            yield Event(outcome.ended_at, f"{step} left it out, {reason}: {reason.meaning}")
        late = select(t.rewards).where(t.rewards.c.trajectory_id == run.id, t.rewards.c.created_at > outcome.ended_at)
        for reward in connection.execute(late):
            yield Event(reward.created_at, f"that reward came after {step}: it is kept, and was not used")


@dataclass(frozen=True)
class Counts:
    """What became of a policy's trajectories. Those that several policies answered count for each."""

    trained: int
    tokens: int
    left_out: dict[Reason, int]
    waiting: dict[str, int]
    """Those that no step has decided on, by their group's claim: under `done`, those that came after its step."""


def counts(database: Database, policy: str) -> Counts:
    """Trajectories of a policy by what became of them."""
    o, k, c = t.outcomes.c, t.claims.c, t.trajectories.c
    with database.read() as connection:
        outcomes = connection.execute(
            select(o.reason, func.count(), func.sum(o.tokens)).where(o.policy == policy).group_by(o.reason)
        ).all()
        undecided = ~exists().where(o.trajectory_id == c.id, o.policy == policy)
        by_claim = (
            select(k.status, func.count())
            .join(t.trajectories, c.group_id == k.group_id)
            .where(k.policy == policy, LEARNED_FROM, undecided)
            .group_by(k.status)
        )
        waiting: dict[str, int] = dict(row for row in connection.execute(by_claim))
        measured = connection.execute(select(func.count()).where(c.policy == policy, ~c.train)).scalar_one()
        excluded = connection.execute(select(func.count()).where(c.policy == policy, c.train, c.excluded)).scalar_one()
    trained, tokens = next(((count, tokens) for reason, count, tokens in outcomes if reason is None), (0, 0))
    left_out = {Reason(reason): count for reason, count, _ in outcomes if reason is not None}
    if measured:
        left_out[Reason.EVALUATION] = measured
    if excluded:
        left_out[Reason.EXCLUDED] = excluded
    return Counts(trained, tokens, left_out, waiting)


_CALLS = {*names.LLM_OPERATIONS, names.EXECUTE_TOOL}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _when(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
