"""Calls in, rows out: what a micro-batch is, its plainest layout, and the log-probabilities of its tokens.

The invariant: every sampled token of every call is one loss term, in the same micro-batch as the rest of
its call, and the position that predicts it has seen exactly what the engine had. `forest.py` keeps it
with shared prefixes; here a row holds one call, and everything that says which positions count is made
from lengths, never from token values, so a padding id that is also an end token means nothing. Padding
is on the right: under causal attention no real token sees it.

Suffixes: B rows, L positions of a row, N = B · L of all rows, T sampled tokens, P distinct places to
predict from, H hidden size, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .model import backbone_and_head
from .tokens import Call

# Logits of this many tokens exist at a time: 50 MB in float32 with a vocabulary of 49,152.
_HEAD_CHUNK = 256


@dataclass(frozen=True)
class MicroBatch:
    """Rows for one forward and backward pass. The last token of a call predicts nothing and is in none.
    Integer tensors are int64, the others float32 unless said otherwise."""

    calls: tuple[Call, ...]
    input_ids_BL: Tensor
    attention_mask: Tensor
    """[B, L], 1 for what isn't padding; or bool [B, 1, L, L], true where a position sees another."""
    position_ids_BL: Tensor
    calls_T: Tensor
    """The call of each sampled token: an index into `calls`. A call's tokens are in order."""
    positions_T: Tensor
    """The position whose logits predict it: an index into N."""
    targets_T: Tensor
    """The sampled token itself."""
    sampler_logprobs_T: Tensor
    temperatures_T: Tensor


def padded_batches(calls: Sequence[Call], max_tokens: int, device: torch.device) -> Iterator[MicroBatch]:
    """Rows of similar length together, at most `max_tokens` positions each, padding included.

    A longer call goes alone. The order depends on lengths and trajectory ids, not on the order in
    which groups were claimed.
    """
    rows: list[Call] = []
    for call in sorted(calls, key=lambda call: (-_row_length(call), call.trajectory_id)):
        if rows and _row_length(rows[0]) * (len(rows) + 1) > max_tokens:
            yield _pad(rows, device)
            rows = []
        rows.append(call)
    if rows:
        yield _pad(rows, device)


def token_logprobs(model: PeftModel, batch: MicroBatch) -> Tensor:
    """log π(token | its prefix) at each call's temperature, float32 of shape [T], with gradient."""
    return token_scores(model, batch, entropy="none")[0]


def token_scores(
    model: PeftModel, batch: MicroBatch, entropy: Literal["none", "measured", "trained"]
) -> tuple[Tensor, Tensor]:
    """The log-probabilities of `token_logprobs`, and the entropy in nats of the distribution that each token was drawn
    from, float32 of shape [T]: zeros, without gradient, or with it.

    The transformer gives hidden states, and only those that predict sampled tokens go through the
    head, a chunk at a time; the backward pass computes a chunk's logits again instead of keeping them.
    The models' own `logits_to_keep` can't do this: it takes the same positions of every row, and holds
    all their logits at once. `load_policy` has checked that the model's logits are the head's output
    and nothing more.
    """
    backbone, head = backbone_and_head(model)
    mask = batch.attention_mask
    if mask.ndim == 4:
        # Added to the scores, it suits eager attention too; given as bool, SDPA would make and keep
        # such a tensor in every layer.
        mask = torch.zeros(mask.shape, dtype=model.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    hidden_NH = backbone(
        input_ids=batch.input_ids_BL,
        attention_mask=mask,
        position_ids=batch.position_ids_BL,
        use_cache=False,
    ).last_hidden_state.flatten(0, 1)
    chunks = zip(
        torch.split(batch.positions_T, _HEAD_CHUNK),
        torch.split(batch.targets_T, _HEAD_CHUNK),
        torch.split(batch.temperatures_T, _HEAD_CHUNK),
        strict=True,
    )
    scores = [
        checkpoint(_head_scores, head, hidden_NH, *chunk, entropy, use_reentrant=False, preserve_rng_state=False)
        for chunk in chunks
    ]
    logprobs, entropies = zip(*scores, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _head_scores(
    head: nn.Module, hidden_NH: Tensor, positions_T: Tensor, targets_T: Tensor, temperatures_T: Tensor, entropy: str
) -> tuple[Tensor, Tensor]:
    """Neighbours that are predicted from one position at one temperature share one row of logits."""
    distinct_T = torch.ones_like(positions_T, dtype=torch.bool)
    distinct_T[1:] = (positions_T.diff() != 0) | (temperatures_T.diff() != 0)
    logits_PV = head(hidden_NH[positions_T[distinct_T]]).float() / temperatures_T[distinct_T, None]
    rows_T = distinct_T.cumsum(0) - 1
    normaliser_P = logits_PV.logsumexp(-1)
    logprobs_T: Tensor = logits_PV[rows_T, targets_T] - normaliser_P[rows_T]
    if entropy == "none":
        return logprobs_T, torch.zeros_like(logprobs_T)
    # Last, so that the backward pass, which stops when it has what it needs, doesn't compute it again.
    with torch.set_grad_enabled(entropy == "trained" and torch.is_grad_enabled()):
        probabilities_PV = (logits_PV - normaliser_P[:, None]).exp()
        entropies_P = normaliser_P - (probabilities_PV * logits_PV).sum(-1)
    return logprobs_T, entropies_P[rows_T]


def _row_length(call: Call) -> int:
    return len(call.prompt_ids) + len(call.token_ids) - 1


def _pad(calls: Sequence[Call], device: torch.device) -> MicroBatch:
    lengths_B = torch.tensor([_row_length(call) for call in calls])
    length = int(lengths_B.max())
    input_ids_BL = torch.zeros(len(calls), length, dtype=torch.int64)
    for row, call in enumerate(calls):
        input_ids_BL[row, : lengths_B[row]] = torch.tensor(call.prompt_ids + call.token_ids[:-1])
    position_ids_BL = torch.arange(length).expand(len(calls), length)
    sampled_B = torch.tensor([len(call.token_ids) for call in calls])
    temperatures_B = torch.tensor([call.temperature for call in calls])
    return MicroBatch(
        calls=tuple(calls),
        input_ids_BL=input_ids_BL.to(device),
        attention_mask=(position_ids_BL < lengths_B[:, None]).long().to(device),
        position_ids_BL=position_ids_BL.to(device),
        calls_T=torch.arange(len(calls)).repeat_interleave(sampled_B).to(device),
        positions_T=torch.cat(
            [row * length + torch.arange(len(call.prompt_ids) - 1, _row_length(call)) for row, call in enumerate(calls)]
        ).to(device),
        targets_T=torch.tensor([token for call in calls for token in call.token_ids]).to(device),
        sampler_logprobs_T=torch.tensor([value for call in calls for value in call.logprobs]).to(device),
        temperatures_T=temperatures_B.repeat_interleave(sampled_B).to(device),
    )
