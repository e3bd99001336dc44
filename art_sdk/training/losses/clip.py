"""PPO's clipped surrogate, which GRPO, DAPO, Dr. GRPO and GSPO share; the first three differ by their divisor alone.

    J_t = min(r A, clip(r, 1 - ε_low, 1 + ε_high) A)         and with dual clip, for A < 0:
    J_t = max(J_t, c A)

PPO (arXiv 1707.06347, equation 7); the two bounds are DAPO's (arXiv 2503.14476, equation 8), the dual clip is that of
arXiv 1912.09729, equation 5: a token with a negative advantage that became much likelier has a loss without bound.
"""

import torch
from torch import Tensor

from ..options import TrainingOptions
from .tensors import LossInputs, LossOutputs


def clipped_surrogate(log_ratios_T: Tensor, advantages_T: Tensor, options: TrainingOptions) -> LossOutputs:
    """-J_t for every token. Gradient flows through `log_ratios_T`."""
    ratios = log_ratios_T.exp()
    low, high = 1.0 - options.clip_low, 1.0 + options.clip_high
    objective = torch.minimum(ratios * advantages_T, ratios.clamp(low, high) * advantages_T)
    clipped = ((advantages_T > 0) & (ratios > high)) | ((advantages_T < 0) & (ratios < low))
    if options.dual_clip is not None:
        bounded = (advantages_T < 0) & (ratios > options.dual_clip)
        objective = torch.where(bounded, options.dual_clip * advantages_T, objective)
        clipped = clipped | bounded
    return LossOutputs(losses=-objective, ratios=ratios.detach(), clipped=clipped)


def clip_each_token(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    """The surrogate with each token's own ratio."""
    return clipped_surrogate(inputs.log_ratios, inputs.advantages, options)
