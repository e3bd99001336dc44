"""Is the new version really what the engine serves? Asked after every load, before any routing.

vLLM loads an adapter whose keys fit no layer "successfully" and then answers with the base model, so
a version is believed only when its logprobs are the trainer's. The trainer leaves a few sequences with
its own fp32 logprobs, under the new adapter and under the base, in the version's folder; the engine
scores the same tokens under both names.

What the engine shows is never the trainer's change to the letter. It computes in bfloat16, and it adds the
adapter's output to one that is already rounded, so that what is smaller than half a unit in the last
place is lost: of a first step of 0.1 nats it showed 0.47, of one of 1.8 nats 0.88 (SmolLM2-135M, r=16).
So a version has to differ from the base and to be nearer to the trainer than to no training at all,
beyond what rounding may cost. The share shown is reported, not judged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import EngineError
from .engine import EngineClient

FILE = "probe.json"

TOLERANCE = 0.15
"""Accepted mean absolute error, nats a token: three times what rounding costs where training changed little."""

OF_CHANGE = 0.5
"""Accepted on top of it, as a part of the mean absolute change: half the change must be there."""

NOTHING = 1e-4
"""A mean absolute change, nats a token, below which base and version are the same to the engine."""


class Scored(msgspec.Struct, frozen=True):
    """One sequence of `probe.json`: `logprobs[i]` is the trainer's for `token_ids[i]`, fp32, in nats."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    base_logprobs: list[float]


class ProbeFile(msgspec.Struct, frozen=True):
    sequences: list[Scored]


@dataclass(frozen=True)
class ProbeResult:
    """The verdict and what it rests on. `served_share` is NaN when the trainer changed nothing."""

    accepted: bool
    reason: str
    served_share: float
    mean_abs_error: float
    change: float
    """Mean absolute difference of trained and base, nats a token: what training did."""


def judge(
    trained: Sequence[float],
    base: Sequence[float],
    served: Sequence[float],
    served_base: Sequence[float],
    tolerance: float = TOLERANCE,
) -> ProbeResult:
    """Decide from logprobs (nats) of the same n tokens: the trainer's two, then the engine's two.

    `served_share` = <served - served_base, trained - base> / |trained - base|². Raises `ValueError` when
    the four differ in length or are empty.
    """
    n = len(trained)
    if not n or not len(base) == len(served) == len(served_base) == n:
        lengths = f"{n}, {len(base)}, {len(served)}, {len(served_base)}"
        raise ValueError(f"the probe needs as many logprobs from trainer and engine, at least one; got {lengths}")
    change = [t - b for t, b in zip(trained, base, strict=True)]
    seen = [s - b for s, b in zip(served, served_base, strict=True)]
    square = sum(c * c for c in change)
    share = sum(s * c for s, c in zip(seen, change, strict=True)) / square if square else math.nan
    error = sum(abs(s - t) for s, t in zip(served, trained, strict=True)) / n
    mean_change = sum(map(abs, change)) / n
    limit = tolerance + OF_CHANGE * mean_change

    if not math.isfinite(square + error + sum(seen)):
        accepted, reason = False, "a logprob is no finite number"
    elif mean_change >= NOTHING and not any(seen):
        accepted, reason = False, "the engine answers exactly as the base model: the adapter's keys fit no layer"
    elif error > limit:
        accepted = False
        reason = f"the engine is {error:.3f} nats a token off the trainer, more than {limit:.3f}"
    else:
        accepted = True
        reason = f"{error:.3f} nats a token off the trainer, whose training changed {mean_change:.3f}"
    return ProbeResult(accepted, reason, share, error, mean_change)


async def probe(client: EngineClient, name: str, base_name: str, version_dir: Path) -> ProbeResult:
    """Score the sequences of `version_dir / "probe.json"` under both names, and judge.

    Raises `EngineError` when the file is missing or malformed, or the engine can't score.
    """
    path = version_dir / FILE
    try:
        sequences = msgspec.json.decode(path.read_bytes(), type=ProbeFile).sequences
    except (OSError, msgspec.DecodeError) as error:
        raise EngineError(f"{path} is no probe of a version, so {name} can't be checked: {error}") from error
    trained: list[float] = []
    base: list[float] = []
    served: list[float] = []
    served_base: list[float] = []
    # One after another: in a batch of another shape the engine rounds in another way, which would
    # look like a change.
    for sequence in sequences:
        trained += sequence.logprobs
        base += sequence.base_logprobs
        served += await client.logprobs(name, sequence.prompt_ids, sequence.token_ids)
        served_base += await client.logprobs(base_name, sequence.prompt_ids, sequence.token_ids)
    try:
        return judge(trained, base, served, served_base)
    except ValueError as error:
        raise EngineError(f"{path} is no probe of a version: {error}") from error
