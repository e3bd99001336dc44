"""A version exists exactly when its step is recorded, with the groups that it was trained on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from art_sdk.errors import StoreError
from art_sdk.store import steps
from art_sdk.store import tables as t
from art_sdk.store.batch import ClaimedGroup, Outcome
from art_sdk.store.database import Database
from art_sdk.store.queue import LeaseLost, claim
from art_sdk.store.reasons import Reason

from .build import call, completion, end, group, identity, reward, start

Write = Callable[..., None]


@pytest.fixture
def claimed(database: Database, write: Write) -> list[ClaimedGroup]:
    """Two groups of one, leased to a worker."""
    steps.register_policy(database, "support", "/models/base")
    for number in (1, 2):
        in_group = {"art.group.id": identity(100 + number)}
        write(group(100 + number, 1, time.time_ns()), start(number, **in_group), call(number, f"r{number}"))
        write(completion(number, f"r{number}"), end(number, **in_group), reward(number))
    return claim(database, "support", owner="worker", limit=9, lease_seconds=60)


def record(database: Database, groups: list[ClaimedGroup], **changes: Any) -> steps.Step:
    ids = [member.trajectory_id for g in groups for member in g.members]
    told = [{"tokens": 2, "advantage": 1.0}, {"tokens": 0, "reason": Reason.ZERO_VARIANCE}]
    given = {
        "owner": "worker",
        "groups": groups,
        "outcomes": [Outcome(name, **what) for name, what in zip(ids, told, strict=False)],
        "metrics": {"loss": 0.5},
        "started_at": 1,
        "version": 1,
        "path": Path("/versions/1"),
        "note": None,
    }
    return steps.record_step(database, "support", **given | changes)


def test_a_step_its_version_its_groups_and_its_outcomes_are_there_together(
    database: Database, claimed: list[ClaimedGroup]
) -> None:
    step = record(database, claimed)
    assert steps.steps(database, "support") == [step]
    assert (step.step, step.version, step.metrics) == (1, 1, {"loss": 0.5})
    versions = steps.versions(database, "support")
    assert [(v.name, v.status, v.path) for v in versions] == [
        ("support@0", "live", None),
        ("support@1", "candidate", "/versions/1"),
    ]
    with database.read() as connection:
        claims = connection.execute(select(t.claims.c.status, t.claims.c.step)).all()
        o = t.outcomes.c
        outcomes = connection.execute(select(o.step, o.version, o.tokens, o.reason).order_by(o.tokens)).all()
    assert [tuple(row) for row in claims] == [("done", 1)] * 2
    assert [tuple(row) for row in outcomes] == [(1, None, 0, "zero_variance"), (1, 1, 2, None)]


def test_who_lost_a_group_records_nothing(database: Database, claimed: list[ClaimedGroup]) -> None:
    with database.write() as connection:
        connection.execute(update(t.claims).where(t.claims.c.group_id == claimed[1].group_id).values(owner="another"))
    with pytest.raises(LeaseLost):
        record(database, claimed)
    assert steps.steps(database, "support") == []
    assert len(steps.versions(database, "support")) == 1
    with database.read() as connection:
        assert connection.execute(select(t.outcomes)).all() == []
        assert connection.execute(select(t.claims.c.status)).scalars().all() == ["leased"] * 2


def test_a_version_that_is_there_already_costs_the_whole_step(database: Database, claimed: list[ClaimedGroup]) -> None:
    record(database, [], version=1)
    with pytest.raises(StoreError):
        record(database, claimed, version=1)
    assert len(steps.steps(database, "support")) == 1
    with database.read() as connection:
        assert connection.execute(select(t.claims.c.status)).scalars().all() == ["leased"] * 2


def test_a_policy_stays_on_its_base_model(database: Database) -> None:
    steps.register_policy(database, "support", "/models/base")
    steps.register_policy(database, "support", "/models/base")
    with pytest.raises(
        StoreError, match=r"'support' in .* is trained on /models/base, not on /models/other: use another"
    ):
        steps.register_policy(database, "support", "/models/other")
    assert [(v.version, v.status) for v in steps.versions(database, "support")] == [(0, "live")]


def test_one_version_is_live_and_what_was_overtaken_or_broken_says_so(database: Database) -> None:
    steps.register_policy(database, "support", "/models/base")
    for version in (1, 2, 3):
        record(database, [], version=version)
    steps.supersede(database, "support", 1)
    steps.reject(database, "support", 2, "no weights")
    steps.make_live(database, "support", 3)
    found = steps.versions(database, "support")
    assert [v.status for v in found] == ["retired", "retired", "rejected", "live"]
    assert [v.note for v in found] == [None, "overtaken before it was served", "no weights", None]
    assert found[1].served_at is None
    assert found[3].served_at is not None
