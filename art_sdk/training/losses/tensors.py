"""What goes into a loss and what comes out. T is the number of sampled tokens in a micro-batch."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """Tensors of shape [T], float32 unless said otherwise. All tokens of a call are in one micro-batch."""

    logprobs: Tensor
    """The trained policy's log-probabilities, with gradient."""
    sampler_logprobs: Tensor
    """The log-probabilities that the engine returned when it sampled the tokens."""
    advantages: Tensor
    """Each token's advantage: that of its trajectory."""
    rows: Tensor
    """int64: the call to which each token belongs, for losses over whole sequences."""


@dataclass(frozen=True)
class LossOutputs:
    """Tensors of shape [T]."""

    losses: Tensor
    """float32 with gradient: to be added up and divided by the step's trained tokens."""
    ratios: Tensor
    """float32, detached: the policy's probability over the sampler's, before any clipping."""
    clipped: Tensor
    """bool: the tokens that get no gradient because their ratio left the clip range."""
