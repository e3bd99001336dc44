"""`art.reward`: an append-only record on a trajectory or on one of its spans.

A trajectory's reward is the sum of its records. A record with a `key` is written once however
often it is sent: its id is derived from the trajectory, the name and the key.
"""

import hashlib
import math
import re
import time
import uuid
from numbers import Real
from typing import Any

from ..errors import RewardError
from . import journal, spans
from .content import clean
from .records import Reward
from .spans import LiveTrajectory

_TRAJECTORY_ID = re.compile(r"[0-9a-f]{32}")
_SPAN_ID = re.compile(r"[0-9a-f]{16}")


def reward(
    value: float,
    *,
    trajectory_id: str | None = None,
    span_id: str | None = None,
    name: str = "reward",
    key: str | None = None,
) -> None:
    """Give a reward to the current trajectory, or later and from anywhere to the one with this id.

    Args:
        value: any finite number; several rewards of one trajectory add up.
        trajectory_id: 32 hex digits, as `art.current_trajectory().id` gave them.
        span_id: the step that earned it, 16 hex digits; the whole trajectory otherwise.
        name: what is rewarded, for example `csat`.
        key: makes it idempotent: a second reward of this trajectory with the same name and key
            changes nothing.

    Raises:
        RewardError: `value` is no finite number, or there is no such trajectory to give it to.
    """
    live = spans.current_trajectory()
    if trajectory_id is None:
        if live is None:
            raise RewardError(
                "art.reward() was called outside a trajectory: call it inside a function decorated with "
                "@art.trajectory, or pass trajectory_id= (art.current_trajectory().id, while it runs)"
            )
        give(live, value, name=name, span_id=span_id, key=key)
    elif live is not None and live.id == trajectory_id:
        give(live, value, name=name, span_id=span_id, key=key)
    else:
        journal.append(make_record(value, trajectory_id, name=name, span_id=span_id, key=key))


def give(live: LiveTrajectory, value: Any, *, name: str, span_id: str | None = None, key: str | None = None) -> None:
    """Give a reward to a trajectory that is still running here."""
    record = make_record(value, live.id, name=name, span_id=span_id, key=key)
    if live.captured:
        journal.append(record)
    live.rewards.setdefault(record.id, record.value)  # the first of a key counts, as in the store


def make_record(
    value: Any,
    trajectory_id: str,
    *,
    name: str = "reward",
    span_id: str | None = None,
    key: str | None = None,
    source: str = "code",
) -> Reward:
    """A checked reward record. Raises `RewardError`."""
    if not isinstance(value, Real) and not hasattr(value, "__float__"):
        raise RewardError(f"a reward must be a number, got {value!r} ({type(value).__name__})")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # an array, a tensor, 10**400
        raise RewardError(f"a reward must be one number, got a {type(value).__name__}: {error}") from error
    if not math.isfinite(number):
        raise RewardError(
            f"a reward must be a finite number, got {number}: check the reward function for 0/0 or overflow"
        )
    if not isinstance(trajectory_id, str) or not _TRAJECTORY_ID.fullmatch(trajectory_id):
        raise RewardError(f"trajectory_id must be 32 lower-case hex digits, got {trajectory_id!r}")
    if span_id is not None and (not isinstance(span_id, str) or not _SPAN_ID.fullmatch(span_id)):
        raise RewardError(f"span_id must be 16 lower-case hex digits, got {span_id!r}")
    if not isinstance(name, str) or not name:
        raise RewardError(f"a reward's name must be a non-empty string, got {name!r}")
    name = clean(name)
    identity = uuid.uuid4().hex
    if key is not None:
        identity = hashlib.blake2b(
            f"{trajectory_id}\0{name}\0{key}".encode("utf-8", "backslashreplace"), digest_size=16
        ).hexdigest()
    return Reward(
        id=identity,
        trajectory_id=trajectory_id,
        span_id=span_id,
        name=name,
        value=number,
        source=source,
        created_at=time.time_ns(),
    )
