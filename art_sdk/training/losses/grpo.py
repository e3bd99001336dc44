"""GRPO: the clipped surrogate, every trajectory with the same weight.

"DeepSeekMath" (arXiv 2402.03300), equation 3: the mean over each trajectory's tokens, then over the trajectories. A
token of a long trajectory counts for less, and so mistakes at length are punished less: see `dapo` and `dr_grpo`.
"""

from ..options import TrainingOptions
from .clip import clipped_surrogate
from .tensors import Loss, LossInputs, LossOutputs


def _per_token(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    return clipped_surrogate(inputs.log_ratios, inputs.advantages, options)


grpo = Loss(_per_token, normalised_by="trajectories", ratio="unbounded")
