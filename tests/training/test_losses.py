import math

import pytest
import torch

from art_sdk.training.losses import LOSSES, LossInputs, LossOutputs
from art_sdk.training.options import TrainingOptions

OPTIONS = TrainingOptions(clip_low=0.2, clip_high=0.28)
SIGMOID = 1 / (1 + math.exp(-0.5))
CLIPPED = ("dapo", "grpo", "dr_grpo", "gspo")


def _token(loss: str, ratio: float, advantage: float, options: TrainingOptions = OPTIONS) -> tuple[LossOutputs, float]:
    """The loss of a call of one token, and its derivative by log π."""
    logprob = torch.tensor([math.log(0.1 * ratio)], requires_grad=True)
    inputs = LossInputs(
        logprobs=logprob,
        old_logprobs=torch.tensor([math.log(0.1)]),
        advantages=torch.tensor([advantage]),
        calls=torch.tensor([0]),
    )
    outputs = LOSSES[loss].per_token(inputs, options)
    torch.autograd.backward(outputs.losses.sum())
    assert logprob.grad is not None
    return outputs, float(logprob.grad)


@pytest.mark.parametrize("loss", CLIPPED)
@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.0, -2.0, 2.0, 2.0, False),
        (1.2, 1.0, -1.2, -1.2, False),
        (1.5, 1.0, -1.28, 0.0, True),  # clipped above
        (0.5, 1.0, -0.5, -0.5, False),  # a good token that became rarer is pulled back up
        (0.5, -1.0, 0.8, 0.0, True),  # clipped below
        (1.5, -1.0, 1.5, 1.5, False),
        (4.0, -1.0, 4.0, 4.0, False),
        (4.0, 1.0, -1.28, 0.0, True),
    ],
)
def test_the_clipped_surrogate_by_hand(
    loss: str, ratio: float, advantage: float, value: float, gradient: float, clipped: bool
) -> None:
    outputs, derivative = _token(loss, ratio, advantage)
    assert outputs.losses.item() == pytest.approx(value, rel=1e-5)
    assert derivative == pytest.approx(gradient, rel=1e-5)
    assert outputs.clipped.item() is clipped
    assert outputs.ratios.item() == pytest.approx(ratio, rel=1e-5)


@pytest.mark.parametrize("loss", CLIPPED)
def test_the_dual_clip_bounds_what_a_bad_token_can_cost(loss: str) -> None:
    options = OPTIONS.model_copy(update={"dual_clip": 3.0})
    outputs, derivative = _token(loss, 4.0, -1.0, options)
    assert (outputs.losses.item(), derivative, outputs.clipped.item()) == (pytest.approx(3.0), 0.0, True)
    outputs, derivative = _token(loss, 2.0, -1.0, options)
    assert (outputs.losses.item(), derivative, outputs.clipped.item()) == (
        pytest.approx(2.0),
        pytest.approx(2.0),
        False,
    )


@pytest.mark.parametrize(
    ("loss", "ratio", "advantage", "value", "gradient"),
    [
        ("cispo", 0.5, 2.0, -0.5 * 2 * math.log(0.05), -1.0),
        ("cispo", 4.0, 2.0, -1.28 * 2 * math.log(0.4), -2.56),
        ("cispo", 4.0, -1.0, 1.28 * math.log(0.4), 1.28),
        ("sapo", 1.0, 2.0, -2.0 / 1.0 * 2, -2.0),
        ("sapo", 1.5, 2.0, -4 * SIGMOID * 2, -4 * SIGMOID * (1 - SIGMOID) * 1.5 * 2),
        ("sapo", 1.0, -1.0, 2 / 1.05, 1.0),
        ("reinforce", 4.0, 2.0, -2 * math.log(0.4), -2.0),
        ("reinforce", 0.5, -1.0, math.log(0.05), 1.0),
    ],
)
def test_the_losses_that_do_not_clip_by_hand(
    loss: str, ratio: float, advantage: float, value: float, gradient: float
) -> None:
    outputs, derivative = _token(loss, ratio, advantage)
    assert outputs.losses.item() == pytest.approx(value, rel=1e-5)
    assert derivative == pytest.approx(gradient, rel=1e-5)
    assert not outputs.clipped.item()


def test_gspo_has_one_ratio_for_all_tokens_of_a_call() -> None:
    log_ratios = torch.tensor([0.1, -0.3, 0.2, 0.6, 0.2])
    logprobs = (log_ratios - 2.0).requires_grad_()
    calls = torch.tensor([0, 1, 0, 1, 0])
    inputs = LossInputs(logprobs, torch.full((5,), -2.0), torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]), calls)
    outputs = LOSSES["gspo"].per_token(inputs, OPTIONS)
    first, second = math.exp(0.5 / 3), math.exp(0.15)
    assert outputs.losses.tolist() == pytest.approx([-first, second, -first, second, -first])
    torch.autograd.backward(outputs.losses[:1].sum())
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-first / 3, 0, -first / 3, 0, -first / 3])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_every_loss_stays_finite_for_a_token_that_the_sampler_called_impossible(loss: str, advantage: float) -> None:
    logprob = torch.tensor([-1.0], requires_grad=True)
    inputs = LossInputs(logprob, torch.tensor([-9999.0]), torch.tensor([advantage]), torch.tensor([0]))
    outputs = LOSSES[loss].per_token(inputs, OPTIONS)
    torch.autograd.backward(outputs.losses.sum())
    assert logprob.grad is not None
    assert outputs.losses.isfinite().all()
    assert logprob.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
def test_on_policy_every_loss_has_the_policy_gradient(loss: str) -> None:
    for advantage in (2.0, -0.5):
        assert _token(loss, 1.0, advantage)[1] == pytest.approx(-advantage)
