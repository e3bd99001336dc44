"""Log-probabilities and advantages to a loss per token.

A loss sees the sampled tokens of a micro-batch, flat, and gives one value for each. The trainer weights them for the
sampler's mismatch, divides them as the loss says, by sizes of the whole step, and adds them up: so the size of a
micro-batch changes nothing. To add a loss: a file here, its line in `LOSSES`, its name in `TrainingOptions.loss`.
"""

from collections.abc import Mapping

from .cispo import cispo
from .dapo import dapo
from .dr_grpo import dr_grpo
from .grpo import grpo
from .gspo import gspo
from .reinforce import reinforce
from .sapo import sapo
from .tensors import Loss, LossInputs, LossOutputs

LOSSES: Mapping[str, Loss] = {
    "dapo": dapo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "reinforce": reinforce,
}

__all__ = ["LOSSES", "Loss", "LossInputs", "LossOutputs"]
