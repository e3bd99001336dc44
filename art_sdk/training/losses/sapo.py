"""SAPO: a soft gate in the clip's place.

    J_t = (4/τ) σ(τ (r - 1)) · A        τ = 1.0 for A > 0, 1.05 otherwise

"Soft Adaptive Policy Optimization" (arXiv 2511.20347), equation 6: the gradient fades as the ratio leaves 1 instead of
stopping at a bound; at r = 1 it is that of the unclipped surrogate.
"""

import torch

from ..options import TrainingOptions
from .tensors import Loss, LossInputs, LossOutputs


def _per_token(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    ratios = inputs.log_ratios.exp()
    positive, negative = options.sapo_temperatures
    temperatures = torch.where(inputs.advantages > 0, positive, negative)
    gates = torch.sigmoid(temperatures * (ratios - 1)) * 4 / temperatures
    return LossOutputs(
        losses=-gates * inputs.advantages,
        ratios=ratios.detach(),
        clipped=torch.zeros_like(ratios, dtype=torch.bool),
    )


sapo = Loss(_per_token, normalised_by="trajectories", ratio="bounded")
