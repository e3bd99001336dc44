"""Is the new version really what the engine serves? Asked after every load, before any routing.

vLLM loads an adapter whose keys fit no layer "successfully" and then answers with the base model, so
a version is believed only when its logprobs are the trainer's. The trainer leaves a few sequences with
its own fp32 logprobs, under the new adapter and under the base, in the version's folder; the engine
scores the same tokens under both names.

The engine computes in bfloat16, and its error (about 0.03 nats a token on a 135M model) may exceed what
one small step changed. Both of the engine's numbers carry much the same error, so the difference
between them is compared with the difference that training made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import EngineError
from .engine import EngineClient

FILE = "probe.json"

SHARE = (0.5, 1.5)
"""Accepted share of the trainer's change that the engine shows: 1 is all of it, 0 is the base model."""

TOLERANCE = 0.15
"""Accepted mean absolute error, nats a token: five times what bfloat16 costs. It catches what the share
lets pass, an engine that is far off for the base model too."""

CLEAR = 8.0
"""The share is judged when the norm of the change is this many times the engine's error on one token:
then its own standard error is at most sqrt(2) / 8 = 0.18, a third of the way to the border."""

NOTHING = 1e-4
"""A root mean square change, nats a token, below which base and version are the same to the engine."""


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
    """Root mean square of trained - base, nats a token: what training did."""
    noise: float
    """Root mean square of served base - base: the engine's error."""


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
    noise = math.sqrt(sum((s - b) ** 2 for s, b in zip(served_base, base, strict=True)) / n)
    share = sum(s * c for s, c in zip(seen, change, strict=True)) / square if square else math.nan
    error = sum(abs(s - t) for s, t in zip(served, trained, strict=True)) / n
    rms = math.sqrt(square / n)

    clear = math.sqrt(square) >= max(CLEAR * noise, NOTHING)
    if not math.isfinite(square + error + noise):
        accepted, reason = False, "a logprob is no finite number"
    elif clear and not SHARE[0] <= share <= SHARE[1]:
        accepted = False
        reason = f"the engine shows {share:.2f} of the trainer's change (near 0: it answers with the base model)"
    elif error > tolerance:
        accepted = False
        reason = f"the engine is {error:.3f} nats a token off the trainer, more than {tolerance}"
    elif clear:
        accepted, reason = True, f"the engine shows {share:.2f} of the trainer's change"
    elif rms < NOTHING:
        accepted, reason = True, "training changed nothing that the engine could show"
    else:
        accepted = any(seen)
        verb = "shows one too" if accepted else "answers exactly as the base model"
        reason = f"the trainer's change is below the engine's error, and the engine {verb}"
    return ProbeResult(accepted, reason, share, error, rms, noise)


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
