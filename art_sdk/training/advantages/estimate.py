"""What goes into an estimator and what comes out."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..options import TrainingOptions
from ..tokens import Candidate

Groups = Sequence[Sequence[Candidate]]
"""Each inner sequence holds the trajectories of one group that can be learned from: at least one."""


@dataclass(frozen=True)
class Estimate:
    """`advantages[trajectory id]` has one value for each of its calls. A group of zeros teaches nothing."""

    advantages: Mapping[str, Sequence[float]]
    memory: Mapping[str, float] = field(default_factory=dict)
    """What the estimator wants to know at the next step. It goes into checkpoints."""


Estimator = Callable[[Groups, TrainingOptions, Mapping[str, float]], Estimate]
"""Groups, options and the memory that the step before left to advantages. It depends on no order of the groups or in
them, and not on how many calls or tokens the other trajectories have."""


def by_rewards(compare: Callable[[Sequence[float], TrainingOptions], list[float]]) -> Estimator:
    """An estimator that compares the rewards inside each group, and gives every call of a trajectory the same.

    `compare` gets at least two rewards that are not all equal.
    """

    def estimate(groups: Groups, options: TrainingOptions, memory: Mapping[str, float]) -> Estimate:
        advantages: dict[str, Sequence[float]] = {}
        for group in pooled(groups):
            rewards = [candidate.reward for candidate in group]
            values = compare(rewards, options) if len(set(rewards)) > 1 else [0.0] * len(rewards)
            for candidate, value in zip(group, values, strict=True):
                advantages[candidate.trajectory_id] = [value] * len(candidate.calls)
        return Estimate(advantages)

    return estimate


def pooled(groups: Groups) -> list[Sequence[Candidate]]:
    """A group of one has no baseline of its own: those are pooled by trajectory name and compared with each other."""
    pools: defaultdict[str, list[Candidate]] = defaultdict(list)
    for group in groups:
        if len(group) == 1:
            pools[group[0].name].append(group[0])
    return [*(group for group in groups if len(group) > 1), *pools.values()]


def centred(values: Sequence[float], options: TrainingOptions) -> list[float]:
    """`values` minus their mean, with `scale_by_std` over their sample standard deviation + 1e-4. Equal ones give 0."""
    if len(set(values)) < 2:
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    scale = 1.0
    if options.scale_by_std:
        scale = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) + 1e-4
    return [(value - mean) / scale for value in values]


def returns(candidate: Candidate, discount: float) -> list[float]:
    """The discounted return from each call on: G_t = Σ_k discount^(k-t) r_k. A call's r is what its span was given;
    what the trajectory was given as a whole comes at the last call."""
    rewards = [call.reward for call in candidate.calls]
    rewards[-1] += candidate.reward - math.fsum(rewards)
    following = 0.0
    found = []
    for reward in reversed(rewards):
        following = reward + discount * following
        found.append(following)
    return found[::-1]
