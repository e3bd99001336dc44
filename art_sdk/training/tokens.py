"""Which trajectories can be learned from: every claimed member is either selected or has a reason.

A trajectory is selected or left out as a whole, because its reward belongs to all of its calls: to
train half of them would credit the wrong tokens. The ids and log-probabilities are those that the
engine returned; no text is tokenized here.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..capture.records import Completion
from ..store.batch import ClaimedGroup, Member, Outcome
from ..store.reasons import Reason
from .options import TrainingOptions


@dataclass(frozen=True)
class Call:
    """One LLM call to train on: `token_ids[i]` was sampled with `logprobs[i]` after
    `prompt_ids + token_ids[:i]`, from logits divided by `temperature`, by version `version`."""

    trajectory_id: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float
    version: int
    reward: float = 0.0
    """What its span was given: part of the trajectory's reward."""
    state: tuple[int, ...] = ()
    """What the environment said since the trajectory's call before: the tokens of the prompt that are new. All of the
    prompt, for the first call and for one that doesn't go on from the one before."""
    advantage: float = 0.0
    """What the step found it to be worth: known once the groups have been compared."""


@dataclass(frozen=True)
class Candidate:
    """A trajectory that can be learned from. It has at least one call."""

    trajectory_id: str
    name: str
    reward: float
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Selection:
    """`groups` have at least one candidate each; `left_out` is everything else."""

    groups: tuple[tuple[Candidate, ...], ...]
    left_out: tuple[Outcome, ...]


def select(groups: Sequence[ClaimedGroup], *, current_version: int, options: TrainingOptions) -> Selection:
    """Sort the members of `groups` into what can be learned from and what can't, with the reasons."""
    selected: list[tuple[Candidate, ...]] = []
    left_out: list[Outcome] = []
    for group in groups:
        usable: list[Candidate] = []
        for member in group.members:
            found = _candidate(member, current_version, options)
            if isinstance(found, Reason):
                left_out.append(Outcome(member.trajectory_id, tokens=0, reason=found))
            else:
                usable.append(found)
        if usable:
            selected.append(tuple(usable))
    return Selection(tuple(selected), tuple(left_out))


def _candidate(member: Member, current_version: int, options: TrainingOptions) -> Candidate | Reason:
    if member.status != "finished":
        return Reason.FAILED
    if member.reward is None or not math.isfinite(member.reward):
        return Reason.NO_REWARD
    if member.masked:
        return Reason.MASKED
    completions = [completion for completion in member.completions if completion.token_ids]
    if not completions or not all(map(_scored, completions)):
        return Reason.NO_TOKENS
    if not all(_reproducible(completion.sampling) for completion in completions):
        return Reason.UNSUPPORTED_SAMPLING
    if current_version - min(completion.version for completion in completions) > options.max_staleness:
        return Reason.TOO_STALE
    longest = max(len(completion.prompt_ids) + len(completion.token_ids) for completion in completions)
    if longest > options.max_tokens_per_call:
        return Reason.TOO_LONG
    if options.drop_truncated and any(completion.finish_reason == "length" for completion in completions):
        return Reason.TRUNCATED
    return Candidate(member.trajectory_id, member.name, member.reward, tuple(_calls(member, completions)))


def _calls(member: Member, completions: Sequence[Completion]) -> Iterator[Call]:
    rewards = dict(member.span_rewards)
    before: list[int] = []
    for completion in completions:
        prompt_ids = completion.prompt_ids
        goes_on = bool(before) and prompt_ids[: len(before)] == before
        yield Call(
            trajectory_id=member.trajectory_id,
            prompt_ids=tuple(prompt_ids),
            token_ids=tuple(completion.token_ids),
            logprobs=tuple(completion.logprobs),
            temperature=_temperature(completion.sampling),
            version=completion.version,
            reward=rewards.pop(completion.span_id or "", 0.0),  # of several choices, the first one's
            state=tuple(prompt_ids[len(before) :] if goes_on else prompt_ids),
        )
        before = [*prompt_ids, *completion.token_ids]


def _scored(completion: Completion) -> bool:
    """A prompt to predict from, and one finite log-probability per token: without them no ratio."""
    return (
        bool(completion.prompt_ids)
        and len(completion.logprobs) == len(completion.token_ids)
        and all(map(math.isfinite, completion.logprobs))
    )


# What each parameter of a request must be for the engine to sample from softmax(logits / temperature)
# and nothing else. Every other value cuts or bends the distribution in a way that the trainer's
# softmax doesn't follow, so the ratio would be wrong without a sign of it.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "min_tokens": (None, 0),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "structured_outputs": (None,),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "none", "auto"),
    "use_beam_search": (None, False),
}


def _reproducible(sampling: Mapping[str, Any]) -> bool:
    neutral = all(sampling.get(name) in values for name, values in _NEUTRAL.items())
    return neutral and _temperature(sampling) > 0


def _temperature(sampling: Mapping[str, Any]) -> float:
    temperature = sampling.get("temperature")
    return 1.0 if temperature is None else float(temperature)
