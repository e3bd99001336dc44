"""Log-probabilities and advantages to a loss per token.

A loss sees the sampled tokens of a micro-batch, flat, and gives one value for each. The trainer adds
them up and divides by the number of trained tokens of the whole step, so that the size of a
micro-batch changes nothing. To add a loss: a file here, and its line in `LOSSES`.
"""

from collections.abc import Callable, Mapping

from ..options import TrainingOptions
from .dapo import dapo
from .tensors import LossInputs, LossOutputs

Loss = Callable[[LossInputs, TrainingOptions], LossOutputs]

LOSSES: Mapping[str, Loss] = {
    "dapo": dapo,
}

__all__ = ["LOSSES", "Loss", "LossInputs", "LossOutputs"]
