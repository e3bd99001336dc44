import math

import pytest
import torch

from art_sdk.training.losses import LOSSES, LossInputs, LossOutputs
from art_sdk.training.options import TrainingOptions

OPTIONS = TrainingOptions(clip_low=0.2, clip_high=0.28, max_importance_weight=2.0)


def _token(ratio: float, advantage: float) -> tuple[LossOutputs, float]:
    """The loss of one token and its derivative by log π."""
    logprob = torch.tensor([math.log(0.1 * ratio)], requires_grad=True)
    inputs = LossInputs(
        logprobs=logprob,
        sampler_logprobs=torch.tensor([math.log(0.1)]),
        advantages=torch.tensor([advantage]),
        rows=torch.tensor([0]),
    )
    outputs = LOSSES["dapo"](inputs, OPTIONS)
    torch.autograd.backward(outputs.losses.sum())
    assert logprob.grad is not None
    return outputs, float(logprob.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.0, -2.0, 2.0, 2.0, False),
        (1.2, 1.0, -1.2, -1.2, False),
        (1.5, 1.0, -1.28, 0.0, True),  # clipped above
        (0.5, 1.0, -0.5, -0.5, False),  # a good token that became rarer is pulled back up
        (0.5, -1.0, 0.8, 0.0, True),  # clipped below
        (1.5, -1.0, 1.5, 1.5, False),
        (4.0, -1.0, 2.0, 2.0, False),  # truncated at 2, gradient kept
        (4.0, 1.0, -1.28, 0.0, True),
    ],
)
def test_dapo_by_hand(ratio: float, advantage: float, loss: float, gradient: float, clipped: bool) -> None:
    outputs, derivative = _token(ratio, advantage)
    assert outputs.losses.item() == pytest.approx(loss, rel=1e-5)
    assert derivative == pytest.approx(gradient, rel=1e-5)
    assert outputs.clipped.item() is clipped
    assert outputs.ratios.item() == pytest.approx(ratio, rel=1e-5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_dapo_stays_finite_for_a_token_that_the_sampler_called_impossible(advantage: float) -> None:
    logprob = torch.tensor([-1.0], requires_grad=True)
    inputs = LossInputs(logprob, torch.tensor([-9999.0]), torch.tensor([advantage]), torch.tensor([0]))
    outputs = LOSSES["dapo"](inputs, OPTIONS)
    torch.autograd.backward(outputs.losses.sum())
    assert logprob.grad is not None
    assert outputs.losses.isfinite().all()
    assert logprob.grad.isfinite().all()
