"""Plans are compared with plans, and actions with those that followed the same plan.

    macro_i = mean(R of the trajectories with i's plan) - mean(R)        for the plan
    micro_i = R_i - mean(R of the trajectories with i's plan)            for what follows it

The two add up to the group's advantage exactly: what a plan earned is not credited to the actions, nor the other way
round. The plan is the trajectory's first call, and two plans are the same where the same tokens were sampled after the
same prompt. A plan that one trajectory alone followed leaves its actions without comparison: they get 0.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

from ..options import TrainingOptions
from ..tokens import Candidate
from .estimate import Estimate, Groups, centred, pooled


def plan_act(groups: Groups, options: TrainingOptions, memory: Mapping[str, float]) -> Estimate:
    advantages = {}
    for group in pooled(groups):
        plans: defaultdict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[Candidate, float]]] = defaultdict(list)
        for candidate, value in zip(group, centred([c.reward for c in group], options), strict=True):
            plan = candidate.calls[0]
            plans[plan.prompt_ids, plan.token_ids].append((candidate, value))
        for followed in plans.values():
            macro = math.fsum(value for _, value in followed) / len(followed)
            for candidate, value in followed:
                advantages[candidate.trajectory_id] = [macro] + [value - macro] * (len(candidate.calls) - 1)
    return Estimate(advantages)
