"""Dr. GRPO: the clipped surrogate, divided by a constant length.

"Understanding R1-Zero-Like Training" (arXiv 2503.20783), section 3.2: neither a trajectory's length nor the step's
weighs in, which takes GRPO's length bias away. Meant with advantages that aren't divided by the standard deviation.
"""

from ..options import TrainingOptions
from .clip import clipped_surrogate
from .tensors import Loss, LossInputs, LossOutputs


def _per_token(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    return clipped_surrogate(inputs.log_ratios, inputs.advantages, options)


dr_grpo = Loss(_per_token, normalised_by="constant", ratio="unbounded")
