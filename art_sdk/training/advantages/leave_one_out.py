"""The reward against the mean of the others.

A_i = R_i - mean(R without R_i) = n / (n - 1) · (R_i - mean(R)): RLOO, "Back to Basics" (arXiv 2402.14740), section 3.
A baseline that the trajectory itself is not part of has no bias, whatever the size of the group.
"""

from collections.abc import Sequence

from ..options import TrainingOptions
from .estimate import by_rewards, centred


def _compare(rewards: Sequence[float], options: TrainingOptions) -> list[float]:
    count = len(rewards)
    return [value * count / (count - 1) for value in centred(rewards, options)]


leave_one_out = by_rewards(_compare)
