"""GSPO: one ratio for a whole sequence.

    s = exp(mean_t log r_t)        over the tokens of one call
    J = min(s A, clip(s, 1 - ε_low, 1 + ε_high) A)

"Group Sequence Policy Optimization" (arXiv 2507.18071), equations 5 and 7. A sequence is one call: what the engine
sampled in one go. The paper's clip range is narrow (3e-4 and 4e-4): a mean over tokens moves little.
"""

from ..options import TrainingOptions
from .clip import clipped_surrogate
from .tensors import Loss, LossInputs, LossOutputs, mean_by_call


def _per_token(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    return clipped_surrogate(mean_by_call(inputs.log_ratios, inputs.calls), inputs.advantages, options)


gspo = Loss(_per_token, normalised_by="trajectories", ratio="unbounded")
