"""What goes into a loss and what comes out. T is the number of sampled tokens in a micro-batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..options import TrainingOptions

Ratio = Literal["absent", "bounded", "unbounded"]
"""Whether the gradient of a loss holds the ratio π_θ/π_old, and whether something cuts it from above for every
advantage. What the loss doesn't do, the mismatch's weight has to."""


def clamped(log_ratios: Tensor) -> Tensor:
    """At most 20 either way: e^20 is far beyond every clip, and the sampler's -9999 for an impossible token would be
    infinite."""
    return log_ratios.clamp(-20.0, 20.0)


@dataclass(frozen=True)
class LossInputs:
    """Tensors of shape [T], float32 unless said otherwise. All tokens of a call are in one micro-batch."""

    logprobs: Tensor
    """log π_θ, the trained policy's, with gradient."""
    old_logprobs: Tensor
    """log π_old, what the ratio is taken against: the sampler's, or the policy's when the step began."""
    advantages: Tensor
    """Each token's advantage: that of its call."""
    calls: Tensor
    """int64: the call to which each token belongs, for losses over whole sequences."""

    @property
    def log_ratios(self) -> Tensor:
        """log r_t = log π_θ - log π_old, with gradient, at most 20 either way."""
        return clamped(self.logprobs - self.old_logprobs)


@dataclass(frozen=True)
class LossOutputs:
    """Tensors of shape [T]."""

    losses: Tensor
    """float32 with gradient: to be weighted for the sampler's mismatch, divided as the loss says, and added up."""
    ratios: Tensor
    """float32, detached: what was clipped, before it was."""
    clipped: Tensor
    """bool: the tokens that get no gradient, because their ratio left the clip range."""


@dataclass(frozen=True)
class Loss:
    """How the loss of a token is computed, and what the sum over the step's tokens is divided by."""

    per_token: Callable[[LossInputs, TrainingOptions], LossOutputs]
    normalised_by: Literal["tokens", "trajectories", "constant"]
    """`tokens`: the trained tokens of the step. `trajectories`: each trajectory's tokens, then the number of
    trajectories. `constant`: trajectories times `constant_length`, so that no length counts."""
    ratio: Ratio


def mean_by_call(values_T: Tensor, calls_T: Tensor) -> Tensor:
    """The mean over the tokens of each call, at each of its tokens: shape [T], with gradient."""
    calls = int(calls_T.max()) + 1
    counts = torch.bincount(calls_T, minlength=calls).clamp(min=1)
    sums = values_T.new_zeros(calls).index_add(0, calls_T, values_T)
    return (sums / counts)[calls_T]
