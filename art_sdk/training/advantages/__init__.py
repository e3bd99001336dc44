"""Rewards of one group to one advantage per trajectory.

An estimator never sees calls or tokens, so a trajectory's advantage can't depend on how many it made.
To add one: a file here, and its line in `ADVANTAGES`.
"""

from collections.abc import Callable, Mapping, Sequence

from ..options import TrainingOptions
from .group import group_advantages

Advantage = Callable[[Sequence[float], TrainingOptions], list[float]]
"""Rewards of a group's trajectories, at least two and not all equal, to their advantages in that order."""

ADVANTAGES: Mapping[str, Advantage] = {
    "group": group_advantages,
}
