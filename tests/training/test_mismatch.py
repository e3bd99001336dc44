import math
from typing import Any

import pytest
import torch

from art_sdk.training.mismatch import weights
from art_sdk.training.options import TrainingOptions

RHO = [0.4, 1.0, 1.5, 4.0]


def _weights(ratio: Any, advantage: float = 1.0, **options: Any) -> list[float]:
    """Of four calls of one token each."""
    count = len(RHO)
    given = torch.tensor(RHO).log(), torch.full((count,), advantage), torch.arange(count)
    found = weights(*given, TrainingOptions(max_importance_weight=2.0, **options), ratio)
    return [round(value, 5) for value in found.tolist()]


@pytest.mark.parametrize(
    ("correction", "absent", "unbounded", "bounded"),
    [
        ("none", RHO, [1, 1, 1, 1], [1, 1, 1, 1]),
        ("truncate", [0.4, 1.0, 1.5, 2.0], [1, 1, 1, 0.5], [1, 1, 1, 1]),
        ("icepop", [0, 1.0, 1.5, 4.0], [0, 1, 1, 1], [0, 1, 1, 1]),
        ("sequence_mask", [0.4, 1.0, 1.5, 0], [1, 1, 1, 0], [1, 1, 1, 0]),
    ],
)
def test_each_correction_by_hand(
    correction: str, absent: list[float], unbounded: list[float], bounded: list[float]
) -> None:
    assert _weights("absent", correction=correction) == pytest.approx(absent)
    assert _weights("unbounded", correction=correction) == pytest.approx(unbounded)
    assert _weights("bounded", correction=correction) == pytest.approx(bounded)


def test_a_sequence_is_masked_by_the_product_of_its_tokens() -> None:
    log_rho = torch.tensor([1.6, 1.6, 1.6, -1.6]).log().nan_to_num(nan=-1.0)
    calls = torch.tensor([0, 0, 0, 1])
    options = TrainingOptions(correction="sequence_mask", max_sequence_weight=4.0)
    assert weights(log_rho, torch.ones(4), calls, options, "unbounded").tolist() == [0, 0, 0, 1]
    longer = options.model_copy(update={"max_sequence_weight": 4.2})
    assert weights(log_rho, torch.ones(4), calls, longer, "unbounded").tolist() == [1, 1, 1, 1]


def test_the_off_policy_mask_takes_bad_calls_that_the_policy_has_left_behind() -> None:
    log_rho = torch.tensor([-0.5, -0.7, -0.2, -0.1, -0.6, -0.6])
    calls = torch.tensor([0, 0, 1, 1, 2, 2])
    advantages = torch.tensor([-1.0, -1.0, -1.0, -1.0, 1.0, 1.0])
    options = TrainingOptions(correction="none", off_policy_mask=0.5)
    assert weights(log_rho, advantages, calls, options, "unbounded").tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("correction", ["none", "truncate", "icepop", "sequence_mask"])
def test_a_token_that_the_sampler_called_impossible_has_a_finite_weight(correction: Any) -> None:
    options = TrainingOptions(correction=correction)
    for log_rho in (9998.0, -9998.0):
        found = weights(torch.tensor([log_rho]), torch.tensor([-1.0]), torch.tensor([0]), options, "absent")
        assert math.isfinite(found.item())
