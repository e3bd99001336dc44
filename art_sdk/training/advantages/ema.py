"""The reward against what this agent's runs got lately: for groups of one, as production traffic makes them.

    A_i = R_i - b        b ← d^n b + (1 - d^n) mean(R)        d = `ema_decay`, n the step's runs of that agent

b is a running mean for each trajectory name, as it was before the step, so the order of the step's trajectories
doesn't matter; for a name that was not seen before it is the mean of the step (Williams 1992's reinforcement
comparison).
"""

import math
from collections import defaultdict
from collections.abc import Mapping

from ..options import TrainingOptions
from ..tokens import Candidate
from .estimate import Estimate, Groups


def ema(groups: Groups, options: TrainingOptions, memory: Mapping[str, float]) -> Estimate:
    named: defaultdict[str, list[Candidate]] = defaultdict(list)
    for group in groups:
        for candidate in group:
            named[candidate.name].append(candidate)
    baselines = dict(memory)
    advantages = {}
    for name, candidates in named.items():
        mean = math.fsum(candidate.reward for candidate in candidates) / len(candidates)
        baseline = memory.get(name, mean)
        for candidate in candidates:
            advantages[candidate.trajectory_id] = [candidate.reward - baseline] * len(candidate.calls)
        kept = options.ema_decay ** len(candidates)
        baselines[name] = kept * baseline + (1 - kept) * mean
    return Estimate(advantages, baselines)
