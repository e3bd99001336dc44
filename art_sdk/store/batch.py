"""What the queue hands to a trainer, and what the trainer hands back: plain data, no connection."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..capture.records import Completion
from .reasons import Reason


@dataclass(frozen=True)
class Member:
    """A trajectory as the trainer sees it. `completions` are this policy's own, in order of time."""

    trajectory_id: str
    name: str
    status: str
    reward: float | None
    masked: bool
    completions: tuple[Completion, ...]
    span_rewards: Mapping[str, float] = field(default_factory=dict)
    """The sums of those rewards that single spans were given. They are part of `reward`."""


@dataclass(frozen=True)
class ClaimedGroup:
    """A group under lease: these trajectories are compared with each other."""

    group_id: str
    policy: str
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of one trajectory in one step: `tokens` trained on, or the reason why none were."""

    trajectory_id: str
    tokens: int
    advantage: float | None = None
    reason: Reason | None = None
