"""Calls in, rows out: padded micro-batches, and the log-probabilities of their sampled tokens.

The invariant: row b holds one call, and everything that says which of its positions count (attention
mask, rows, positions) is made from lengths, never from token values, so a padding id that is also an
end token means nothing. Padding is on the right: under causal attention no real token sees it.

Suffixes: B rows, L positions, T sampled tokens of all rows, H hidden size, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """Rows for one forward and backward pass. Row b is `calls[b]` without its last token, which
    predicts nothing. Integer tensors are int64, the others float32."""

    calls: tuple[Call, ...]
    input_ids_BL: Tensor
    attention_mask_BL: Tensor
    position_ids_BL: Tensor
    rows_T: Tensor
    """The row of each sampled token."""
    positions_T: Tensor
    """The position in that row whose logits predict it."""
    targets_T: Tensor
    """The sampled token itself."""
    sampler_logprobs_T: Tensor
    temperatures_T: Tensor


def micro_batches(calls: Sequence[Call], max_tokens: int, device: torch.device) -> Iterator[MicroBatch]:
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
    """log π(token | its prefix) at each call's temperature, float32 of shape [T], with gradient.

    The transformer gives hidden states, those that predict sampled tokens are gathered, and only they
    go through the head, a chunk at a time; the backward pass computes a chunk's logits again instead
    of keeping them. The models' own `logits_to_keep` can't do this: it takes the same positions of
    every row, and holds all their logits at once. `load_policy` has checked that the model's logits
    are the head's output and nothing more.
    """
    backbone, head = backbone_and_head(model)
    hidden_BLH = backbone(
        input_ids=batch.input_ids_BL,
        attention_mask=batch.attention_mask_BL,
        position_ids=batch.position_ids_BL,
        use_cache=False,
    ).last_hidden_state
    hidden_TH = hidden_BLH[batch.rows_T, batch.positions_T]
    chunks = zip(
        torch.split(hidden_TH, _HEAD_CHUNK),
        torch.split(batch.targets_T, _HEAD_CHUNK),
        torch.split(batch.temperatures_T, _HEAD_CHUNK),
        strict=True,
    )
    return torch.cat(
        [checkpoint(_head_logprobs, head, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    )


def _head_logprobs(head: nn.Module, hidden_TH: Tensor, targets_T: Tensor, temperatures_T: Tensor) -> Tensor:
    logits_TV = head(hidden_TH).float() / temperatures_T[:, None]
    return torch.log_softmax(logits_TV, dim=-1).gather(-1, targets_T[:, None]).squeeze(-1)


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
        attention_mask_BL=(position_ids_BL < lengths_B[:, None]).long().to(device),
        position_ids_BL=position_ids_BL.to(device),
        rows_T=torch.arange(len(calls)).repeat_interleave(sampled_B).to(device),
        positions_T=torch.cat([torch.arange(len(call.prompt_ids) - 1, _row_length(call)) for call in calls]).to(device),
        targets_T=torch.tensor([token for call in calls for token in call.token_ids]).to(device),
        sampler_logprobs_T=torch.tensor([value for call in calls for value in call.logprobs]).to(device),
        temperatures_T=temperatures_B.repeat_interleave(sampled_B).to(device),
    )
