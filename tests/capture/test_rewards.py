"""`art.reward`: append-only, checked, summed, idempotent with a key, from anywhere."""

import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import art_sdk as art
from art_sdk.store import Store
from art_sdk.store.reading import Trajectory

Stored = Callable[[], Store]


def only(store: Store, **where: Any) -> Trajectory:
    (found,) = store.trajectories(**where)
    return found


def rewarded(*values: Any, **options: Any) -> None:
    @art.trajectory
    def handle() -> None:
        for value in values:
            art.reward(value, **options)

    handle()


@pytest.mark.parametrize(
    "value",
    [
        1,
        0.25,
        True,
        False,
        -3.5,
        np.float32(0.5),
        np.float64(0.5),
        np.int64(7),
        np.array(2.5),
        Fraction(1, 2),
        Decimal(2),
    ],
    ids=repr,
)
def test_any_finite_number_is_a_reward(stored: Stored, value: Any) -> None:
    rewarded(value)
    assert only(stored()).reward == float(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "finite number, got nan"),
        (float("inf"), "finite number, got inf"),
        (-np.float32("inf"), "finite number, got -inf"),
        ("1.0", r"must be a number, got '1.0' \(str\)"),
        (None, r"must be a number, got None \(NoneType\)"),
        ([1.0], "must be a number"),
        (1 + 2j, "must be a number"),
        (np.array([1.0, 2.0]), "must be one number, got a ndarray"),
        (10**400, "must be one number, got a int: int too large"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_finite_number_is_refused_and_nothing_is_written(stored: Stored, value: Any, said: str) -> None:
    @art.trajectory
    def handle() -> None:
        with pytest.raises(art.RewardError, match=said):
            art.reward(value)

    handle()
    run = only(stored())
    assert run.reward is None
    assert run.rewards == ()


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_that_is_no_text_is_refused(home: Path, name: Any) -> None:
    with pytest.raises(art.RewardError, match="name must be a non-empty string"):
        art.reward(1.0, trajectory_id="a" * 32, name=name)


@pytest.mark.parametrize("identity", ["", "abc", "A" * 32, "g" * 32, "a" * 33, 12, "a" * 32 + "\n"])
def test_what_is_no_trajectory_id_is_refused(home: Path, identity: Any) -> None:
    with pytest.raises(art.RewardError, match="trajectory_id must be 32 lower-case hex digits"):
        art.reward(1.0, trajectory_id=identity)


@pytest.mark.parametrize("identity", ["", "abc", "A" * 16, 12])
def test_what_is_no_span_id_is_refused(home: Path, identity: Any) -> None:
    with pytest.raises(art.RewardError, match="span_id must be 16 lower-case hex digits"):
        art.reward(1.0, trajectory_id="a" * 32, span_id=identity)


def test_outside_a_trajectory_the_error_says_what_to_do(home: Path) -> None:
    with pytest.raises(art.RewardError, match=r"outside a trajectory.*pass trajectory_id="):
        art.reward(1.0)


def test_rewards_of_a_trajectory_add_up(stored: Stored) -> None:
    rewarded(1.0, 0.5, -0.25)
    run = only(stored())
    assert run.reward == 1.25
    assert [reward["value"] for reward in run.rewards] == [1.0, 0.5, -0.25]


def test_a_key_makes_a_reward_idempotent_within_its_name(stored: Stored) -> None:
    @art.trajectory
    def handle() -> None:
        art.reward(1.0, key="ticket-81")
        art.reward(5.0, key="ticket-81")
        art.reward(0.5, key="ticket-82")
        art.reward(0.25, key="ticket-81", name="csat")

    handle()
    assert only(stored()).reward == 1.75


def test_a_later_reward_counts_and_its_key_still_holds(stored: Stored) -> None:
    rewarded(1.0, key="k")
    identity = only(stored()).id
    art.reward(0.5, trajectory_id=identity)
    art.reward(9.0, trajectory_id=identity, key="k")
    assert only(stored()).reward == 1.5


def test_a_reward_may_belong_to_a_span(stored: Stored) -> None:
    @art.tool
    def look_up() -> None: ...

    @art.trajectory
    def handle() -> None:
        look_up()

    handle()
    run = only(stored())
    art.reward(0.5, trajectory_id=run.id, span_id=run.spans[1].span_id, name="useful")
    run = only(stored())
    (reward,) = run.rewards
    assert (reward["span_id"], reward["name"], reward["value"], reward["source"]) == (
        run.spans[1].span_id,
        "useful",
        0.5,
        "code",
    )
    assert run.reward == 0.5


@pytest.mark.slow
def test_a_reward_comes_later_from_another_process(stored: Stored, home: Path) -> None:
    rewarded(1.0)
    identity = only(stored()).id
    code = f"import art_sdk as art; art.reward(0.5, trajectory_id={identity!r}, key='thumb'); assert art.flush()"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"ART_HOME": str(home)}, check=True)
    assert only(stored()).reward == 1.5


def test_a_reward_that_comes_before_its_trajectory_is_kept(stored: Stored, home: Path) -> None:
    from art_sdk.capture import journal
    from art_sdk.capture.records import SpanStart

    identity = "c" * 32
    art.reward(0.5, trajectory_id=identity)
    assert art.flush(10)
    journal.append(SpanStart(identity, "d" * 16, None, "late", 1, {}))
    assert only(stored()).reward == 0.5
