import pytest

from art_sdk.training import entropy
from art_sdk.training.options import TrainingOptions

OPTIONS = TrainingOptions(
    entropy_target=0.8, entropy_warmup=2, entropy_gain=0.1, entropy_coefficient=0.01, max_entropy_coefficient=0.05
)


def _after(*seen: float, options: TrainingOptions = OPTIONS) -> float:
    memory: dict[str, float] = {}
    for value in seen:
        memory = entropy.steered(memory, value, options)
    return entropy.coefficient(memory, options)


def test_while_the_start_is_measured_nothing_is_steered() -> None:
    assert _after() == _after(2.0) == _after(2.0, 1.0) == 0.01


def test_the_coefficient_rises_while_the_entropy_is_below_its_share_and_falls_above_it() -> None:
    assert _after(2.0, 1.0, 1.05) == pytest.approx(0.01 + 0.1 * (0.8 - 1.05 / 1.5))
    assert _after(2.0, 1.0, 1.2) == pytest.approx(0.01)
    assert _after(2.0, 1.0, 1.25) == pytest.approx(0.01 - 0.1 * (1.25 / 1.5 - 0.8))


def test_it_stays_between_zero_and_the_bound_and_can_come_back() -> None:
    low = [1.5, 1.5, *[0.1] * 20]
    assert _after(*low) == 0.05
    assert _after(*low, *[3.0] * 20) == 0.0
    assert _after(*low, *[3.0] * 20, 0.3) > 0


def test_without_a_target_the_coefficient_stays() -> None:
    options = TrainingOptions(entropy_coefficient=0.02)
    assert _after(2.0, 0.1, 0.1, 0.1, options=options) == 0.02


def test_a_policy_that_was_certain_from_the_start_is_left_alone() -> None:
    assert _after(0.0, 0.0, 0.0, 0.5) == 0.01
