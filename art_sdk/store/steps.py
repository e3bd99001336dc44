"""Policies, their versions, and the steps that made them.

A version exists from the moment its step is recorded, in the same transaction that marks the step's
groups as trained: there is no version without its groups, and no group trained on without a version.

    version:  candidate ──(loaded, probe passed)──► live ──(a later one is live)──► retired
                  └──────(probe failed)──► rejected
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from ..errors import StoreError
from . import tables as t
from .apply import insert_new, upsert
from .batch import ClaimedGroup, Outcome
from .database import Database
from .queue import finish_claims


@dataclass(frozen=True)
class Version:
    """One adapter of a policy. `path` is None for version 0, the base model."""

    policy: str
    version: int
    path: str | None
    status: str
    created_at: int
    served_at: int | None
    note: str | None

    @property
    def name(self) -> str:
        """The name that the engine serves it under."""
        return served_name(self.policy, self.version)


@dataclass(frozen=True)
class Step:
    """One attempt to train. `version` is None where nothing was learned, and `note` says why."""

    policy: str
    step: int
    version: int | None
    started_at: int
    ended_at: int
    metrics: dict[str, Any]
    note: str | None


def served_name(policy: str, version: int) -> str:
    return f"{policy}@{version}"


def register_policy(database: Database, name: str, base_model: str) -> None:
    """Make a policy known, with version 0, its base model, live.

    Raises `StoreError` where the store has this policy on another base model: its versions are
    adapters of that one.
    """
    now = time.time_ns()
    with database.write() as connection:
        insert_new(connection, t.policies, [{"name": name, "base_model": base_model, "created_at": now}])
        known = connection.execute(select(t.policies.c.base_model).where(t.policies.c.name == name)).scalar_one()
        if known != base_model:
            raise StoreError(
                f"policy {name!r} in {database.name} is trained on {known}, not on {base_model}: "
                "use another policy name or another store"
            )
        first = {"policy": name, "version": 0, "path": None, "status": "live", "created_at": now, "served_at": now}
        insert_new(connection, t.versions, [first])


def record_step(
    database: Database,
    policy: str,
    *,
    owner: str,
    groups: Sequence[ClaimedGroup],
    outcomes: Sequence[Outcome],
    metrics: dict[str, float],
    started_at: int,
    version: int | None,
    path: Path | None,
    note: str | None,
) -> Step:
    """Record a step, its version if it made one, and its groups as done, in one transaction.

    Raises `queue.LeaseLost`, with nothing recorded, where another worker has taken a group meanwhile.
    """
    with database.write() as connection:
        # Locked, or two workers on Postgres would give their steps the same number.
        connection.execute(select(t.policies).where(t.policies.c.name == policy).with_for_update())
        last = connection.execute(select(func.max(t.steps.c.step)).where(t.steps.c.policy == policy)).scalar()
        step = Step(policy, (last or 0) + 1, version, started_at, time.time_ns(), metrics, note)
        finish_claims(connection, policy, owner=owner, group_ids=[g.group_id for g in groups], step=step.step)
        connection.execute(insert(t.steps).values(**vars(step)))
        if version is not None:
            values = {"version": version, "path": str(path), "status": "candidate", "created_at": step.ended_at}
            connection.execute(insert(t.versions).values(policy=policy, **values))
        rows = [
            {
                "trajectory_id": outcome.trajectory_id,
                "policy": policy,
                "step": step.step,
                "version": version if outcome.reason is None else None,
                "tokens": outcome.tokens,
                "advantage": outcome.advantage,
                "reason": outcome.reason,
            }
            for outcome in outcomes
        ]
        upsert(connection, t.outcomes, rows, ("step", "version", "tokens", "advantage", "reason"))
    return step


def versions(database: Database, policy: str) -> list[Version]:
    """All versions of a policy, oldest first."""
    query = select(t.versions).where(t.versions.c.policy == policy).order_by(t.versions.c.version)
    with database.read() as connection:
        return [Version(**row) for row in connection.execute(query).mappings()]


def steps(database: Database, policy: str, *, after: int = 0) -> list[Step]:
    """The steps of a policy with a higher number than `after`, in order."""
    query = select(t.steps).where(t.steps.c.policy == policy, t.steps.c.step > after).order_by(t.steps.c.step)
    with database.read() as connection:
        return [Step(**row) for row in connection.execute(query).mappings()]


def policies(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(select(t.policies.c.name).order_by(t.policies.c.name)).scalars())


def make_live(database: Database, policy: str, version: int) -> None:
    """Note that a version answers for its policy now; the one before retires."""
    with database.write() as connection:
        _set(connection, policy, (t.versions.c.status == "live") & (t.versions.c.version != version), status="retired")
        _set(connection, policy, t.versions.c.version == version, status="live", served_at=time.time_ns())


def reject(database: Database, policy: str, version: int, note: str) -> None:
    """Note that a version must never be routed to, and why."""
    with database.write() as connection:
        _set(connection, policy, t.versions.c.version == version, status="rejected", note=note)


def supersede(database: Database, policy: str, version: int) -> None:
    """Retire a candidate that a later one overtook before it was served."""
    with database.write() as connection:
        _set(
            connection, policy, t.versions.c.version == version, status="retired", note="overtaken before it was served"
        )


def _set(connection: Connection, policy: str, which: Any, **values: Any) -> None:
    connection.execute(update(t.versions).where(t.versions.c.policy == policy, which).values(**values))
