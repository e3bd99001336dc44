"""DAPO: the clipped surrogate, every token of the step with the same weight.

"DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (arXiv 2503.14476), equation 8: the sum over all
tokens of all trajectories is divided by their number, so that a long answer's tokens count as much as a short one's.
Its bounds are 0.2 and 0.28, and it has no KL term.
"""

from ..options import TrainingOptions
from .clip import clipped_surrogate
from .tensors import Loss, LossInputs, LossOutputs


def _per_token(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    return clipped_surrogate(inputs.log_ratios, inputs.advantages, options)


dapo = Loss(_per_token, normalised_by="tokens", ratio="unbounded")
