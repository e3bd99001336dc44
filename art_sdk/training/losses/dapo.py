"""Clipped policy gradient with a wider upper bound, normalised over the tokens of the step.

    r   = exp(log π_θ - log μ)                     μ: the sampler, π_θ: the policy being trained
    r̄   = r · sg[min(1, C / r)]                    truncated importance weight, gradient kept
    J_t = min(r̄ A, clip(r, 1 - ε_low, 1 + ε_high) A)

The clip is PPO's (arXiv 1707.06347, equation 7), the two bounds and the sum over all tokens of the
step are DAPO's (arXiv 2503.14476, equation 8), and the truncation at C is that of IMPALA (arXiv
1802.01561): without it a token with a negative advantage that the policy finds much likelier than
the sampler did has a weight without bound. No KL term: DAPO drops it.
"""

import torch

from ..options import TrainingOptions
from .tensors import LossInputs, LossOutputs

# e^20 is far beyond every clip, and the sampler's -9999 for an impossible token would be infinite.
_MAX_LOG_RATIO = 20.0


def dapo(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    """-J_t for every token, shape [T]."""
    log_ratios = (inputs.logprobs - inputs.sampler_logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratios = log_ratios.exp()
    truncation = (options.max_importance_weight / ratios.detach()).clamp(max=1.0)
    low, high = 1.0 - options.clip_low, 1.0 + options.clip_high
    objective = torch.minimum(ratios * truncation * inputs.advantages, ratios.clamp(low, high) * inputs.advantages)
    above = (inputs.advantages > 0) & (ratios > high)
    below = (inputs.advantages < 0) & (ratios < low)
    return LossOutputs(losses=-objective, ratios=ratios.detach(), clipped=above | below)
