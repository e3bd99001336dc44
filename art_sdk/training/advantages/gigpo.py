"""GiGPO: the trajectory against its group, and each call against those that were in the same situation.

    A_i,t = A_i + ω · (G_i,t - mean G of the calls with the same state)

A_i is the group's advantage. "Group-in-Group Policy Optimization" (arXiv 2505.10978), equations 3 to 8: the state is
what the environment said since the call before (`Call.state`), G the discounted return from the call on, ω
`step_weight`. A call that is alone in its state gives 0. With `scale_by_std` both parts are divided by their
standard deviations, as in the paper.
"""

from collections import defaultdict
from collections.abc import Mapping

from ..options import TrainingOptions
from .estimate import Estimate, Groups, centred, pooled, returns


def gigpo(groups: Groups, options: TrainingOptions, memory: Mapping[str, float]) -> Estimate:
    advantages = {}
    for group in pooled(groups):
        episode = centred([candidate.reward for candidate in group], options)
        for candidate, value in zip(group, episode, strict=True):
            advantages[candidate.trajectory_id] = [value] * len(candidate.calls)
        situations: defaultdict[tuple[int, ...], list[tuple[str, int, float]]] = defaultdict(list)
        for candidate in group:
            values = returns(candidate, options.discount)
            for number, (call, value) in enumerate(zip(candidate.calls, values, strict=True)):
                situations[call.state].append((candidate.trajectory_id, number, value))
        for steps in situations.values():
            for (identity, number, _), value in zip(steps, centred([s[2] for s in steps], options), strict=True):
                advantages[identity][number] += options.step_weight * value
    return Estimate(advantages)
