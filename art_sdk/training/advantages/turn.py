"""Credit for each turn: the return from a call on, against the group's returns from the same turn on.

    A_i,t = G_i,t - mean_j(G_j,t)        G_i,t = Σ_k γ^(k-t) r_i,k

over the trajectories j that got as far as turn t ("Reinforcing Multi-Turn Reasoning", arXiv 2505.11821, section 4).
Rewards on spans (`art.reward(..., span_id=)`) are those of their call; what the trajectory got as a whole comes with
its last call. A turn that only one trajectory reached has no comparison and gives 0.
"""

from collections.abc import Mapping

from ..options import TrainingOptions
from .estimate import Estimate, Groups, centred, pooled, returns


def turn(groups: Groups, options: TrainingOptions, memory: Mapping[str, float]) -> Estimate:
    advantages: dict[str, list[float]] = {}
    for group in pooled(groups):
        found = {candidate.trajectory_id: returns(candidate, options.discount) for candidate in group}
        for number in range(max(map(len, found.values()))):
            reached = [values for values in found.values() if len(values) > number]
            for values, value in zip(reached, centred([v[number] for v in reached], options), strict=True):
                values[number] = value
        advantages |= found
    return Estimate(advantages)
