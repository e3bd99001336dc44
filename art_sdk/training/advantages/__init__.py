"""Rewards to one advantage for each call.

An estimator sees trajectories with their calls and rewards, never losses. To add one: a file here, its line in
`ADVANTAGES`, its name in `TrainingOptions.advantage`.
"""

from collections.abc import Mapping

from .batch import batch
from .ema import ema
from .estimate import Estimate, Estimator, Groups
from .gigpo import gigpo
from .group import group
from .leave_one_out import leave_one_out
from .plan_act import plan_act
from .turn import turn

ADVANTAGES: Mapping[str, Estimator] = {
    "group": group,
    "leave_one_out": leave_one_out,
    "batch": batch,
    "ema": ema,
    "turn": turn,
    "gigpo": gigpo,
    "plan_act": plan_act,
}

__all__ = ["ADVANTAGES", "Estimate", "Estimator", "Groups"]
