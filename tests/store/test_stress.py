"""Eight workers, some of them killed while they hold leases: each group is trained on exactly once."""

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from sqlalchemy import func, select

from art_sdk.store import steps
from art_sdk.store import tables as t
from art_sdk.store.database import Database

from .build import completion, end, group, identity, reward, start

GROUPS = 300

WORKER = """
import random, sys, time
from sqlalchemy import select
from art_sdk.store import tables as t
from art_sdk.store.batch import Outcome
from art_sdk.store.database import Database
from art_sdk.store.queue import LeaseLost, claim, release, renew
from art_sdk.store.reasons import Reason
from art_sdk.store.steps import record_step

database, owner, chance = Database(sys.argv[1]), sys.argv[2], random.Random(sys.argv[2])
while True:
    groups = claim(database, "support", owner=owner, limit=3, lease_seconds=0.4)
    if not groups:
        with database.read() as connection:
            if not connection.execute(select(t.claims).where(t.claims.c.status != "done").limit(1)).first():
                break
        time.sleep(0.02)
        continue
    time.sleep(chance.uniform(0, 0.1))
    renew(database, "support", owner=owner, lease_seconds=0.4)
    time.sleep(0.6 if chance.random() < 0.1 else 0)  # as if it had hung: its lease runs out
    outcomes = [Outcome(member.trajectory_id, 0, reason=Reason.ZERO_VARIANCE) for g in groups for member in g.members]
    try:
        record_step(
            database, "support", owner=owner, groups=groups, outcomes=outcomes, metrics={"groups": len(groups)},
            started_at=time.time_ns(), version=None, path=None, note="as if trained",
        )
    except LeaseLost:
        release(database, "support", owner=owner)
"""


@pytest.mark.slow
def test_every_group_is_trained_on_exactly_once(database: Database, write: Callable[..., None]) -> None:
    now = time.time_ns()
    for n in range(1, GROUPS + 1):
        of_group = {"art.group.id": identity(1000 + n)}
        write(group(1000 + n, 1, now), start(n, **of_group), end(n, **of_group), reward(n), completion(n, f"r{n}"))
    steps.register_policy(database, "support", "base")
    chance = random.Random(0)
    names = map("worker-{}".format, itertools.count())
    workers: dict[str, subprocess.Popen[str]] = {}

    def begin() -> None:
        name = next(names)
        command = [sys.executable, "-c", WORKER, database.url, name]
        workers[name] = subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, text=True)

    for _ in range(8):
        begin()
    holding = 0
    while holding < 6 and any(worker.poll() is None for worker in workers.values()):
        time.sleep(0.01)
        with database.read() as connection:
            leased = t.claims.c.status == "leased"
            owners = set(connection.execute(select(t.claims.c.owner).where(leased)).scalars()) & workers.keys()
        if owners and chance.random() < 0.3:
            victim = workers.pop(chance.choice(sorted(owners)))
            victim.kill()
            victim.communicate()
            holding += 1
            begin()
    assert holding == 6, "the work was done before six workers had been killed while they held leases"
    faults = [worker.communicate(timeout=120)[1] for worker in workers.values()]
    assert faults == [""] * 8
    with database.read() as connection:
        done = connection.execute(select(func.count()).where(t.claims.c.status == "done")).scalar_one()
        in_steps = sum(row.metrics["groups"] for row in connection.execute(select(t.steps)))
        trained = connection.execute(select(func.count()).select_from(t.outcomes)).scalar_one()
    assert (done, in_steps, trained) == (GROUPS, GROUPS, GROUPS)
