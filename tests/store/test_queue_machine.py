"""The queue under anything that may happen: workers that crash and hang, late rewards, clocks that jump.

Hypothesis makes up the story; a model of a few sets says what must hold after each step of it.
"""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import select

from art_sdk.settings import Settings
from art_sdk.store import Store, steps
from art_sdk.store import queue as queue_module
from art_sdk.store import tables as t
from art_sdk.store.batch import ClaimedGroup, Outcome
from art_sdk.store.database import Database
from art_sdk.store.queue import LeaseLost, claim, release, renew
from art_sdk.store.reasons import Reason

from .build import SECOND, apply, completion, end, group, identity, reward, start

SETTINGS = Settings(group_deadline=100, group_wait=10, group_size=2)
LEASE = 20
TASKS = ["a" * 32, "b" * 32]
ORDERS = ["oldest", "freshest"]


class Clock:
    """Stands in for `time` in the queue."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND

    def time_ns(self) -> int:
        return self.now


class Queue(RuleBasedStateMachine):
    template: Path
    workers = Bundle("workers")
    members = Bundle("members")

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        shutil.copy(self.template, Path(self.folder.name) / "art.db")
        self.database = Database(f"sqlite:///{self.folder.name}/art.db")
        steps.register_policy(self.database, "support", "base")
        self.clock = Clock()
        queue_module.time = self.clock  # type: ignore[assignment]
        self.held: dict[str, list[ClaimedGroup]] = {}
        self.trained: dict[str, list[str]] = {}
        self.number = 0
        self.groups: list[int] = []

    def write(self, *records: Any) -> None:
        with self.database.write() as connection:
            apply(connection, records, journal="a-1", settings=SETTINGS, now=self.clock.now)

    # What agents do

    @rule(size=st.integers(1, 3), priority=st.integers(0, 2))
    def announce(self, size: int, priority: int) -> None:
        self.groups.append(10_000 + len(self.groups))
        self.write(group(self.groups[-1], size, self.clock.now))
        Store(self.database).prioritize(identity(self.groups[-1]), priority)

    @rule(
        target=members, which=st.integers(0, 50), version=st.integers(0, 4), task=st.sampled_from(["a" * 32, "b" * 32])
    )
    def run_an_agent(self, which: int, version: int, task: str) -> tuple[int, dict[str, Any]]:
        self.number += 1
        attributes: dict[str, Any] = {"art.task.key": task}
        if self.groups and which % 3:
            attributes = {"art.group.id": identity(self.groups[which % len(self.groups)])}
        made = completion(self.number, f"r{self.number}")
        self.write(start(self.number, **attributes), type(made)(**{**_fields(made), "version": version}))
        return self.number, attributes

    @rule(member=members, status=st.sampled_from(["finished", "failed", "cancelled"]))
    def end_it(self, member: tuple[int, dict[str, Any]], status: str) -> None:
        self.write(end(member[0], status, **member[1]))

    @rule(member=members, value=st.floats(-1, 1), key=st.integers(0, 1))
    def reward_it(self, member: tuple[int, dict[str, Any]], value: float, key: int) -> None:
        self.write(reward(member[0], value, key))

    @rule(seconds=st.integers(-60, 120))
    def let_time_pass_or_jump(self, seconds: int) -> None:
        self.clock.now += seconds * SECOND

    # What workers do

    @rule(
        target=workers, order=st.sampled_from(["oldest", "freshest"]), limit=st.integers(1, 3), oldest=st.integers(0, 2)
    )
    def claim_some(self, order: Any, limit: int, oldest: int) -> str:
        owner = f"worker-{self.number}-{len(self.held)}"
        self.held[owner] = claim(
            self.database,
            "support",
            owner=owner,
            limit=limit,
            lease_seconds=LEASE,
            order=order,
            oldest_version=oldest,
        )
        return owner

    @rule(owner=workers)
    def show_a_sign_of_life(self, owner: str) -> None:
        renew(self.database, "support", owner=owner, lease_seconds=LEASE)

    @rule(owner=workers)
    def give_back(self, owner: str) -> None:
        release(self.database, "support", owner=owner)

    @rule(owner=workers)
    def record_a_step(self, owner: str) -> None:
        groups = self.held[owner]
        outcomes = [Outcome(m.trajectory_id, 0, reason=Reason.ZERO_VARIANCE) for g in groups for m in g.members]
        given = {"metrics": {}, "started_at": 1, "version": None, "path": None, "note": "as if trained"}
        try:
            steps.record_step(
                self.database,
                "support",
                owner=owner,
                groups=groups,
                outcomes=outcomes,
                **given,  # type: ignore[arg-type]
            )
        except LeaseLost:
            return
        for each in groups:
            self.trained.setdefault(each.group_id, []).append(owner)
        self.held[owner] = []

    # What must hold

    @invariant()
    def no_group_is_trained_on_twice(self) -> None:
        if not hasattr(self, "database"):
            return
        assert all(len(owners) == 1 for owners in self.trained.values())
        with self.database.read() as connection:
            claims = connection.execute(select(t.claims)).all()
            outcomes = connection.execute(select(t.outcomes)).all()
            members = connection.execute(select(t.trajectories.c.id, t.trajectories.c.group_id)).all()
        of_step = {each.group_id: each.step for each in claims if each.status == "done" and each.step is not None}
        assert of_step.keys() == self.trained.keys()
        # What is leased has an owner and an end, what is ready has neither.
        assert all(each.owner is not None and each.expires_at is not None for each in claims if each.status == "leased")
        assert all(each.owner is None and each.expires_at is None for each in claims if each.status == "ready")
        # What was set aside as stale says so for each member.
        group_of = dict(tuple(row) for row in members)
        stale = {each.group_id for each in claims if each.status == "done" and each.step is None}
        assert {group_of[each.trajectory_id] for each in outcomes if each.step is None} <= stale
        assert all(each.reason == Reason.TOO_STALE for each in outcomes if each.step is None)

    def teardown(self) -> None:
        try:
            if hasattr(self, "database"):
                self.nothing_is_forgotten()
                self.database.close()
                self.folder.cleanup()
        finally:
            queue_module.time = time  # type: ignore[assignment]

    def nothing_is_forgotten(self) -> None:
        """When all deadlines and leases have passed, one last worker finds every group that was not trained on."""
        self.clock.now += 1_000 * SECOND
        while claimed := claim(self.database, "support", owner="last", limit=5, lease_seconds=LEASE):
            self.held["last"] = claimed
            self.record_a_step("last")
        self.no_group_is_trained_on_twice()
        with self.database.read() as connection:
            of_members = set(connection.execute(select(t.trajectories.c.group_id)).scalars()) - {None}
            done = set(connection.execute(select(t.claims.c.group_id).where(t.claims.c.status == "done")).scalars())
        assert of_members == done


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


@pytest.mark.slow
def test_the_queue_holds_what_it_promises_whatever_happens(template: Path) -> None:
    Queue.template = template
    run_state_machine_as_test(
        Queue, settings=hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
