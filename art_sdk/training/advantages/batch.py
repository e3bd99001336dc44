"""The reward against all rewards of the step.

A_i = (R_i - mean(R)) / (std(R) + 1e-4) over all trajectories of all groups, divided only with `scale_by_std`:
REINFORCE++ (arXiv 2501.03262), equation 8, divides. A hard task's runs are compared with an easy one's: for tasks of
one kind, and for production traffic, where no task comes twice.
"""

from collections.abc import Mapping

from ..options import TrainingOptions
from .estimate import Estimate, Groups, centred


def batch(groups: Groups, options: TrainingOptions, memory: Mapping[str, float]) -> Estimate:
    candidates = [candidate for group in groups for candidate in group]
    values = centred([candidate.reward for candidate in candidates], options)
    return Estimate({c.trajectory_id: [value] * len(c.calls) for c, value in zip(candidates, values, strict=True)})
