"""CISPO: the ratio is a weight, cut from above, and never takes a token's gradient away.

    J_t = sg[min(r, 1 + ε_high)] · A · log π_θ

"MiniMax-M1" (arXiv 2506.13585), equation 4, without a lower bound, as there. The cap is 1 + `clip_high` here; TRL's
`epsilon_high` is the cap itself for this loss.
"""

import torch

from ..options import TrainingOptions
from .tensors import Loss, LossInputs, LossOutputs


def _per_token(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    ratios = inputs.log_ratios.detach().exp()
    capped = ratios.clamp(max=1.0 + options.clip_high)
    return LossOutputs(
        losses=-capped * inputs.advantages * inputs.logprobs,
        ratios=ratios,
        clipped=torch.zeros_like(ratios, dtype=torch.bool),
    )


cispo = Loss(_per_token, normalised_by="tokens", ratio="bounded")
