"""REINFORCE: the policy gradient itself.

    J_t = A · log π_θ

Williams (1992), equation 11, over the tokens of the step. There is no ratio in it: what the sampler's probabilities
differ by is in the mismatch's weight alone.
"""

import torch

from ..options import TrainingOptions
from .tensors import Loss, LossInputs, LossOutputs


def _per_token(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    ratios = inputs.log_ratios.detach().exp()
    return LossOutputs(
        losses=-inputs.advantages * inputs.logprobs,
        ratios=ratios,
        clipped=torch.zeros_like(ratios, dtype=torch.bool),
    )


reinforce = Loss(_per_token, normalised_by="tokens", ratio="absent")
