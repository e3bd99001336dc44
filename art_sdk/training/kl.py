"""The distance to a reference policy: the base model, or a past version.

With k = log π_θ - log π_ref of a sampled token, three estimators of KL(π_θ ‖ π_ref) (Schulman, "Approximating KL
Divergence", 2020):

    k1 = k        k2 = k²/2        k3 = e^-k + k - 1

k2 and k3 are added to the loss, β of them. The gradient of k1 says nothing (its mean is zero), so k1 is taken from
the advantage instead, as a cost of the token: A_t - β k1, without gradient.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .options import TrainingOptions


def penalty(logprobs_T: Tensor, reference_T: Tensor, options: TrainingOptions) -> tuple[Tensor, Tensor]:
    """What to take from the advantage and what to add to the loss, each float32 [T], β included."""
    k_T = logprobs_T - reference_T
    beta = options.kl_coefficient
    if options.kl_estimator == "k1":
        return beta * k_T.detach(), torch.zeros_like(k_T)
    estimate_T = k_T.square() / 2 if options.kl_estimator == "k2" else (-k_T).exp() + k_T - 1
    return torch.zeros_like(k_T), beta * estimate_T


@contextmanager
def with_weights(parameters: Sequence[nn.Parameter], others: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the parameters have the values of `others`."""
    own = [parameter.data for parameter in parameters]
    for parameter, other in zip(parameters, others, strict=True):
        parameter.data = other
    try:
        yield
    finally:
        for parameter, value in zip(parameters, own, strict=True):
            parameter.data = value
