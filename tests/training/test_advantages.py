import statistics

import pytest

from art_sdk.training.advantages import ADVANTAGES
from art_sdk.training.options import TrainingOptions


def test_group_advantage_is_the_reward_against_the_mean() -> None:
    assert ADVANTAGES["group"]([0.0, 1.0, 2.0, 5.0], TrainingOptions()) == [-2.0, -1.0, 0.0, 3.0]


def test_group_advantage_can_be_scaled_by_the_sample_deviation() -> None:
    scaled = ADVANTAGES["group"]([0.0, 1.0], TrainingOptions(scale_by_std=True))
    deviation = statistics.stdev([0.0, 1.0])
    assert scaled == pytest.approx([-0.5 / (deviation + 1e-4), 0.5 / (deviation + 1e-4)])
