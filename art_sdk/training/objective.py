"""What one update minimises, from the scores of a micro-batch's tokens.

    Σ_t  weight_t · loss_t / size  +  β · kl_t / size  -  c · H_t / size

The size is one of the whole step (its tokens, or its trajectories and their lengths: the loss says which), so how the
step is cut into micro-batches changes nothing.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from . import mismatch
from .batch import MicroBatch
from .kl import penalty
from .losses import Loss, LossInputs
from .options import TrainingOptions
from .tokens import Call


@dataclass(frozen=True)
class Scores:
    """Of a micro-batch's tokens, float32 [T]."""

    logprobs: Tensor
    """log π_θ, with gradient."""
    entropies: Tensor
    """In nats; with gradient where there is a bonus for it."""
    old_logprobs: Tensor
    """The policy's as the step began."""
    reference_logprobs: Tensor | None
    """The reference's, where the KL costs something."""


@dataclass(frozen=True)
class Terms:
    """Of a micro-batch's tokens, [T], float32 unless said otherwise."""

    losses: Tensor
    """With gradient: they add up, over the step, to what is minimised."""
    log_ratios: Tensor
    """log π_θ - log μ, detached."""
    clipped: Tensor
    """bool"""
    weights: Tensor
    """Detached: 0 for a token that the mismatch leaves out."""
    entropies: Tensor
    kl: Tensor
    """log π_θ - log π_ref, detached; zeros without a reference."""

    def detached(self) -> "Terms":
        return replace(self, losses=self.losses.detach(), entropies=self.entropies.detach())


class Objective:
    """Of one step: knows its sizes."""

    def __init__(self, calls: Sequence[Call], loss: Loss, options: TrainingOptions, entropy_coefficient: float) -> None:
        self._loss = loss
        self._options = options
        self._entropy_coefficient = entropy_coefficient
        self.tokens = sum(len(call.token_ids) for call in calls)
        self._tokens_of: Counter[str] = Counter()
        for call in calls:
            self._tokens_of[call.trajectory_id] += len(call.token_ids)

    def terms(self, batch: MicroBatch, scores: Scores) -> Terms:
        options = self._options
        advantages_T = _per_token(batch, lambda call: call.advantage)
        sampler_T, now_T = batch.sampler_logprobs_T, scores.logprobs.detach()
        proximal = options.ratio == "proximal"
        kl_T = kl_loss_T = torch.zeros_like(now_T)
        if scores.reference_logprobs is not None:
            kl_T = now_T - scores.reference_logprobs
            cost_T, kl_loss_T = penalty(scores.logprobs, scores.reference_logprobs, options)
            advantages_T = advantages_T - cost_T
        old_T = scores.old_logprobs if proximal else sampler_T
        outputs = self._loss.per_token(LossInputs(scores.logprobs, old_T, advantages_T, batch.calls_T), options)
        weights_T = mismatch.weights(
            (scores.old_logprobs if proximal else now_T) - sampler_T,
            advantages_T,
            batch.calls_T,
            options,
            "absent" if proximal else self._loss.ratio,
        )
        losses_T = outputs.losses * weights_T + kl_loss_T - self._entropy_coefficient * scores.entropies
        return Terms(
            losses=losses_T / _per_token(batch, self._size),
            log_ratios=now_T - sampler_T,
            clipped=outputs.clipped,
            weights=weights_T,
            entropies=scores.entropies,
            kl=kl_T,
        )

    def _size(self, call: Call) -> float:
        """What the losses of a call's tokens are divided by."""
        if self._loss.normalised_by == "tokens":
            return self.tokens
        length = self._tokens_of[call.trajectory_id]
        if self._loss.normalised_by == "constant":
            length = self._options.constant_length
        return len(self._tokens_of) * length


def joined(terms: Sequence[Terms]) -> Terms:
    """Those of all micro-batches in one."""
    return Terms(**{field.name: torch.cat([getattr(each, field.name) for each in terms]) for field in fields(Terms)})


def _per_token(batch: MicroBatch, value: Callable[[Call], float]) -> Tensor:
    per_call = torch.tensor([value(call) for call in batch.calls], dtype=torch.float32, device=batch.calls_T.device)
    return per_call[batch.calls_T]
