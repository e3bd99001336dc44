"""Builders for what the store hands to the trainer, with one reason to be told apart."""

from typing import Any

import torch

from art_sdk.capture.records import Completion
from art_sdk.store.batch import ClaimedGroup, Member
from art_sdk.training.step import Trainer

VOCABULARY = 128


def completion(
    prompt: list[int] | None = None,
    tokens: list[int] | None = None,
    logprobs: list[float] | None = None,
    version: int = 0,
    sampling: dict[str, Any] | None = None,
    finish_reason: str = "stop",
    span_id: str | None = None,
) -> Completion:
    tokens = [5, 6] if tokens is None else tokens
    return Completion(
        response_id="r",
        choice=0,
        policy="p",
        version=version,
        prompt_ids=[1, 2, 3] if prompt is None else prompt,
        token_ids=tokens,
        logprobs=[-4.5] * len(tokens) if logprobs is None else logprobs,
        sampling=sampling or {},
        finish_reason=finish_reason,
        created_at=0,
        span_id=span_id,
    )


def member(
    trajectory_id: str,
    reward: float | None,
    completions: tuple[Completion, ...] | None = None,
    name: str = "agent",
    status: str = "finished",
    masked: bool = False,
    span_rewards: dict[str, float] | None = None,
) -> Member:
    completions = (completion(),) if completions is None else completions
    return Member(trajectory_id, name, status, reward, masked, completions, span_rewards or {})


def group(*members: Member) -> ClaimedGroup:
    return ClaimedGroup(group_id="g", policy="p", members=members)


def adapter_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters() if weight.requires_grad}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
