"""The calls of a step as a prefix forest: what several calls have in common is computed once.

The invariant: walking from a root to a leaf gives what the engine saw. The nodes of the trie are tokens,
laid out depth first; a node attends to its ancestors and itself, and its position is its depth, so its
hidden state is the one that it would have in a row of its own.

A node has as many loss terms as calls sampled it, each with its own advantage, sampler log-probability
and temperature. A token that a call sent back as history is part of that call's prompt, which has no
terms, so what a trajectory sampled once is trained once, however many of its calls contain it.
"""

from collections.abc import Iterator, Sequence

import torch
from peft import PeftModel

from .batch import MicroBatch, padded_batches, token_logprobs
from .tokens import Call

# In nats. Rounding of log-probabilities near -24 was found to reach 4e-4 (float32, 135M parameters, sums in another
# order); a mask that is not heeded changes them by tenths at the least.
_TOLERANCE = 0.01

# Depth first, one call's branch lies between the others: whoever ignores the mask sees too much.
_BRANCHING = tuple(
    Call("", prompt_ids, token_ids, (0.0,) * len(token_ids), 1.0, 0)
    for prompt_ids, token_ids in [((1, 2, 3, 4), (5, 6)), ((1, 2, 3, 4), (7, 8, 9)), ((1, 2, 9), (3, 1, 4))]
)


def forest_batches(calls: Sequence[Call], max_tokens: int, device: torch.device) -> Iterator[MicroBatch]:
    """One row each, of at most `max_tokens` nodes. A longer call goes alone, or with its own prefixes.

    The forest is cut between calls, and each row repeats the ancestors that it needs: the cuts are those
    that repeat the least, unless shorter rows save more by their attention than they repeat. The order
    depends on token ids and trajectory ids, not on the order in which groups were claimed.
    """
    ordered = sorted(calls, key=lambda call: (_inputs(call), call.trajectory_id))
    paths = [_inputs(call) for call in ordered]
    for row in _cut(list(map(len, paths)), _shared(paths), max_tokens):
        yield _lay_out(ordered[row], paths[row], device)


def unique_tokens(calls: Sequence[Call]) -> int:
    """Nodes of the forest of whole calls, their last tokens included: the distinct prefixes of them all."""
    paths = sorted(call.prompt_ids + call.token_ids for call in calls)
    return sum(map(len, paths)) - sum(_shared(paths))


def obstacle(model: PeftModel) -> str | None:
    """Why `model` can't take a forest row, or None. Its config is asked first, then `model` itself: a
    branching row must give the log-probabilities of the same calls in rows of their own."""
    config = model.get_base_model().config.get_text_config()
    layer_types = getattr(config, "layer_types", None) or ()
    other = sorted(set(layer_types) - {"full_attention"})
    if other:
        return f"it has layers of type {', '.join(other)}, which don't take an attention mask as given"
    if not layer_types and getattr(config, "sliding_window", None):
        return f"its attention slides over a window of {config.sliding_window} tokens"
    if config._attn_implementation not in ("sdpa", "eager"):
        return f"its attention is {config._attn_implementation}, which doesn't take an attention mask as given"
    try:
        difference = _difference(model)
    except Exception as error:  # whatever the model's own code raises: it can't, and this is why
        return f"a row with branches raises {type(error).__name__}: {error}"
    if difference <= _TOLERANCE:
        return None
    return f"its log-probabilities in a row with branches are off by {difference:.1g}"


def _difference(model: PeftModel) -> float:
    with torch.no_grad():
        (forest,) = forest_batches(_BRANCHING, 100, model.device)
        together_T = token_logprobs(model, forest)
        differences = [
            token_logprobs(model, alone) - together_T[forest.calls_T == forest.calls.index(alone.calls[0])]
            for alone in padded_batches(_BRANCHING, 1, model.device)
        ]
    return float(torch.cat(differences).abs().max())


def _inputs(call: Call) -> tuple[int, ...]:
    return (call.prompt_ids + call.token_ids)[:-1]


def _shared(paths: Sequence[tuple[int, ...]]) -> list[int]:
    """How many leading tokens each of the sorted `paths` shares with the one before: with any before."""
    return [0, *map(_common, paths, paths[1:])][: len(paths)]


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    differing = (depth for depth, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, min(len(a), len(b)))


def _cut(lengths: Sequence[int], shared: Sequence[int], budget: int) -> list[slice]:
    """The rows, as runs of calls. Of all ways to cut, the one with the least work, found call by call."""
    best = [(0, 0)]  # for the first `end` calls: the work, and where the last row starts
    for end in range(1, len(lengths) + 1):
        choices: list[tuple[int, int]] = []
        nodes = longest = 0
        for start in reversed(range(end)):
            nodes += lengths[start] - (shared[start + 1] if start + 1 < end else 0)
            longest = max(longest, lengths[start])
            if nodes > max(budget, longest):
                break
            choices.append((best[start][0] + _work(nodes), start))
        best.append(min(choices))
    rows = []
    end = len(lengths)
    while end:
        rows.append(slice(best[end][1], end))
        end = best[end][1]
    return rows[::-1]


def _work(nodes: int) -> int:
    """What a row costs: its nodes, its attention, which is computed for all pairs and masked after, and
    the weights being read. Fitted on a CPU with 135M parameters; a larger model minds pairs less."""
    return nodes * (2000 + nodes) + 100_000


def _lay_out(calls: Sequence[Call], paths: Sequence[tuple[int, ...]], device: torch.device) -> MicroBatch:
    shared = _shared(paths)
    size = sum(map(len, paths)) - sum(shared)
    ids: list[int] = []
    depths: list[int] = []
    sees_NN = torch.zeros(size, size, dtype=torch.bool)
    terms: list[tuple[int, float, int, int, float]] = []
    nodes: list[int] = []
    for index, (call, path, common) in enumerate(zip(calls, paths, shared, strict=True)):
        start, end = len(ids), len(ids) + len(path) - common
        ids += path[common:]
        depths += range(common, len(path))
        nodes = [*nodes[:common], *range(start, end)]
        sees_NN[start:end, nodes] = torch.ones(end - start, len(path), dtype=torch.bool).tril(common)
        predicting = nodes[len(call.prompt_ids) - 1 :]
        terms += [
            (node, call.temperature, index, token, logprob)
            for node, token, logprob in zip(predicting, call.token_ids, call.logprobs, strict=True)
        ]
    # Terms with one parent and one temperature become neighbours: the head is computed once for them.
    positions, temperatures, indices, targets, logprobs = zip(*sorted(terms, key=lambda term: term[:3]), strict=True)
    return MicroBatch(
        calls=tuple(calls),
        input_ids_BL=torch.tensor([ids]).to(device),
        attention_mask=sees_NN[None, None].to(device),
        position_ids_BL=torch.tensor([depths]).to(device),
        calls_T=torch.tensor(indices).to(device),
        positions_T=torch.tensor(positions).to(device),
        targets_T=torch.tensor(targets).to(device),
        sampler_logprobs_T=torch.tensor(logprobs).to(device),
        temperatures_T=torch.tensor(temperatures).to(device),
    )
