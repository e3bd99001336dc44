import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_sdk.training.advantages import ADVANTAGES
from art_sdk.training.options import TrainingOptions
from art_sdk.training.tokens import Call, Candidate

OPTIONS = TrainingOptions()


def _run(
    identity: str,
    reward: float,
    turns: list[float] | None = None,
    states: list[int] | None = None,
    name: str = "agent",
    plan: int = 0,
) -> Candidate:
    """One call for each of `turns`, which are the rewards of their spans."""
    turns = [0.0] if turns is None else turns
    states = states or list(range(len(turns)))
    calls = tuple(
        Call(identity, (1, 2), (plan if number == 0 else 9,), (-1.0,), 1.0, 0, reward=given, state=(state,))
        for number, (given, state) in enumerate(zip(turns, states, strict=True))
    )
    return Candidate(identity, name, reward, calls)


def _of(name: str, *groups: list[Candidate], memory: dict[str, float] | None = None, **options: Any) -> dict[str, Any]:
    found = ADVANTAGES[name](groups, TrainingOptions(**options), memory or {})
    return {identity: list(values) for identity, values in found.advantages.items()}


def test_group_is_the_reward_against_the_mean_for_every_call() -> None:
    runs = [_run("a", 0.0), _run("b", 1.0, [0, 0, 0]), _run("c", 2.0), _run("d", 5.0)]
    assert _of("group", runs) == {"a": [-2.0], "b": [-1.0] * 3, "c": [0.0], "d": [3.0]}


def test_group_can_be_scaled_by_the_sample_deviation() -> None:
    deviation = statistics.stdev([0.0, 1.0])
    expected = {"a": [pytest.approx(-0.5 / (deviation + 1e-4))], "b": [pytest.approx(0.5 / (deviation + 1e-4))]}
    assert _of("group", [_run("a", 0.0), _run("b", 1.0)], scale_by_std=True) == expected


@pytest.mark.parametrize("name", sorted(set(ADVANTAGES) - {"batch", "ema"}))
def test_equal_rewards_give_exactly_nothing(name: str) -> None:
    runs = [_run(f"{number}", 0.1, [0, 0]) for number in range(7)]
    for scale_by_std in (False, True):
        found = _of(name, runs, scale_by_std=scale_by_std)
        assert {value for values in found.values() for value in values} == {0.0}


def test_groups_of_one_are_compared_with_each_other_by_name() -> None:
    found = _of(
        "group",
        [_run("a", 0.0)],
        [_run("b", 1.0)],
        [_run("other", 1.0, name="other")],
        [_run("c", 3.0), _run("d", 5.0)],
    )
    assert found == {"a": [-0.5], "b": [0.5], "other": [0.0], "c": [-1.0], "d": [1.0]}


def test_leave_one_out_is_the_reward_against_the_mean_of_the_others() -> None:
    found = _of("leave_one_out", [_run("a", 0.0), _run("b", 1.0), _run("c", 5.0)])
    assert found == {"a": [pytest.approx(-3.0)], "b": [pytest.approx(-1.5)], "c": [pytest.approx(4.5)]}


def test_batch_compares_across_groups() -> None:
    groups = [_run("a", 0.0), _run("b", 1.0)], [_run("c", 5.0)]
    assert _of("batch", *groups) == {"a": [-2.0], "b": [-1.0], "c": [3.0]}
    scaled = _of("batch", *groups, scale_by_std=True)
    assert scaled["c"] == [pytest.approx(3.0 / (statistics.stdev([0, 1, 5]) + 1e-4))]


def test_ema_compares_with_what_the_agent_got_lately() -> None:
    options = TrainingOptions(ema_decay=0.9)
    first = ADVANTAGES["ema"]([[_run("a", 1.0)]], options, {})
    assert first.advantages == {"a": [0.0]}  # nothing to compare with: it is where the mean begins
    assert first.memory == {"agent": 1.0}
    second = ADVANTAGES["ema"]([[_run("b", 0.0)], [_run("c", 1.0)], [_run("x", 4.0, name="y")]], options, first.memory)
    assert second.advantages == {"b": [-1.0], "c": [0.0], "x": [0.0]}
    assert second.memory == {"agent": pytest.approx(0.81 * 1.0 + 0.19 * 0.5), "y": 4.0}


def test_turn_compares_returns_from_the_same_turn_on() -> None:
    a = _run("a", 1.5, [0.5, 0.0, 0.0])  # the trajectory's own 1.0 comes with the last call
    b = _run("b", 0.0, [0.0, 0.0])
    found = _of("turn", [a, b], discount=0.5)
    assert found == {"a": [pytest.approx(0.375), pytest.approx(0.25), 0.0], "b": [pytest.approx(-0.375), -0.25]}


def test_gigpo_adds_what_a_call_is_worth_among_those_in_the_same_state() -> None:
    a = _run("a", 1.0, [0, 0], states=[7, 8])
    b = _run("b", 0.0, [0, 0], states=[7, 9])
    found = _of("gigpo", [a, b], discount=0.5, step_weight=2.0)
    # State 7: returns 0.5 and 0. States 8 and 9 have one call each.
    assert found == {"a": [0.5 + 2 * 0.25, 0.5], "b": [-0.5 - 2 * 0.25, -0.5]}


_groups = st.lists(
    st.lists(
        st.tuples(st.floats(-3, 3, allow_subnormal=False), st.integers(1, 4), st.integers(0, 2)),
        min_size=1,
        max_size=6,
    ),
    min_size=1,
    max_size=4,
)


def _made(groups: list[list[tuple[float, int, int]]]) -> list[list[Candidate]]:
    return [
        [
            _run(f"{g}-{m}", reward, [0.0] * calls, states=[plan + n for n in range(calls)], plan=plan)
            for m, (reward, calls, plan) in enumerate(members)
        ]
        for g, members in enumerate(groups)
    ]


@given(_groups, st.booleans())
def test_without_steps_gigpo_is_plain_grpo(groups: list[list[tuple[float, int, int]]], scale: bool) -> None:
    made = _made(groups)
    assert _of("gigpo", *made, step_weight=0.0, scale_by_std=scale) == _of("group", *made, scale_by_std=scale)


@given(_groups, st.booleans())
def test_plan_and_act_add_up_to_plain_grpo(groups: list[list[tuple[float, int, int]]], scale: bool) -> None:
    made = _made(groups)
    plain = _of("group", *made, scale_by_std=scale)
    for identity, values in _of("plan_act", *made, scale_by_std=scale).items():
        for action in values[1:]:
            assert values[0] + action == pytest.approx(plain[identity][0], abs=1e-9)


def test_plan_act_by_hand() -> None:
    found = _of(
        "plan_act",
        [_run("a", 1.0, [0, 0], plan=3), _run("b", 0.0, [0, 0, 0], plan=3), _run("c", 2.0, [0, 0], plan=4)],
    )
    assert found == {"a": [-0.5, 0.5], "b": [-0.5, -0.5, -0.5], "c": [1.0, 0.0]}


@pytest.mark.parametrize("name", ADVANTAGES)
@given(_groups, st.randoms(use_true_random=False))
def test_no_order_changes_a_bit(name: str, groups: list[list[tuple[float, int, int]]], chance: random.Random) -> None:
    made = _made(groups)
    memory = {"agent": 0.25} if name == "ema" else {}
    shuffled = [chance.sample(group, len(group)) for group in chance.sample(made, len(made))]
    assert _of(name, *made, memory=memory) == _of(name, *shuffled, memory=memory)
    first, second = (ADVANTAGES[name](order, OPTIONS, memory).memory for order in (made, shuffled))
    assert first == second


@pytest.mark.parametrize("name", sorted(set(ADVANTAGES) - {"turn", "gigpo", "plan_act"}))
@given(_groups)
def test_the_number_of_calls_changes_nothing(name: str, groups: list[list[tuple[float, int, int]]]) -> None:
    one_call = _made([[(reward, 1, plan) for reward, _, plan in group] for group in groups])
    found = _of(name, *_made(groups))
    for identity, values in _of(name, *one_call).items():
        assert set(found[identity]) == set(values)
