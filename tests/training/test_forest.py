"""The forest against the plainest layout there is: one row per call."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    RwkvConfig,
)

from art_sdk.errors import TrainingError
from art_sdk.store.batch import ClaimedGroup
from art_sdk.training.batch import MicroBatch
from art_sdk.training.forest import forest_batches, obstacle, unique_tokens
from art_sdk.training.options import LoraOptions, TrainingOptions
from art_sdk.training.step import Trainer
from art_sdk.training.tokens import Call
from examples.tiny_model import tiny_model

from .build import VOCABULARY, completion, group, member

CPU = torch.device("cpu")
OPTIONS = TrainingOptions(micro_batch_tokens=60, max_grad_norm=1000.0)
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
ARCHITECTURES = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False),
}

_ids = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
_calls = st.lists(
    st.builds(
        lambda name, prompt, tokens, temperature: Call(name, prompt, tokens, (-1.0,) * len(tokens), temperature, 0),
        st.sampled_from("ab"),
        _ids,
        _ids,
        st.sampled_from([0.5, 1.0]),
    ),
    min_size=1,
    max_size=12,
)


def _call(prompt: str, tokens: str, trajectory_id: str = "t") -> Call:
    """One token per letter."""
    return Call(trajectory_id, tuple(map(ord, prompt)), tuple(map(ord, tokens)), (-1.0,) * len(tokens), 1.0, 0)


def _walked(batch: MicroBatch, position: int) -> tuple[int, ...]:
    """The ids on the way from the root to `position`, which must be at depths 0, 1, 2, …"""
    seen = batch.attention_mask[0, 0, position]
    depths = batch.position_ids_BL[0, seen].tolist()
    assert depths == list(range(len(depths)))
    return tuple(batch.input_ids_BL[0, seen].tolist())


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(calls=_calls, budget=st.integers(1, 40))
def test_walking_from_a_root_to_a_leaf_gives_what_the_engine_saw(calls: list[Call], budget: int) -> None:
    trained: list[Call] = []
    for batch in forest_batches(calls, budget, CPU):
        for index, call in enumerate(batch.calls):
            mine = batch.calls_T == index
            assert tuple(batch.targets_T[mine].tolist()) == call.token_ids
            assert batch.sampler_logprobs_T[mine].tolist() == list(call.logprobs)
            assert batch.temperatures_T[mine].tolist() == [call.temperature] * len(call.token_ids)
            for sampled, position in enumerate(batch.positions_T[mine].tolist()):
                assert _walked(batch, position) == call.prompt_ids + call.token_ids[:sampled]
        trained += batch.calls
    assert sorted(map(repr, trained)) == sorted(map(repr, calls))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(calls=_calls, budget=st.integers(1, 40))
def test_a_row_computes_every_prefix_once_and_stays_within_the_budget(calls: list[Call], budget: int) -> None:
    for batch in forest_batches(calls, budget, CPU):
        size = batch.input_ids_BL.shape[1]
        longest = max(len(call.prompt_ids + call.token_ids) - 1 for call in batch.calls)
        assert size <= max(budget, longest)
        assert len({_walked(batch, position) for position in range(size)}) == size


@given(calls=_calls)
def test_unique_tokens_are_the_distinct_prefixes(calls: list[Call]) -> None:
    rows = [call.prompt_ids + call.token_ids for call in calls]
    assert unique_tokens(calls) == len({row[:end] for row in rows for end in range(1, len(row) + 1)})


def test_history_that_was_sampled_before_has_no_second_term() -> None:
    first, second = _call("sys", "yes"), _call("sysyes, and", "ok")
    (batch,) = forest_batches([first, second], 100, CPU)
    assert batch.input_ids_BL.shape == (1, len("sysyes, ando"))
    assert sorted(map(chr, batch.targets_T.tolist())) == sorted("yesok")


def test_equal_tokens_of_two_trajectories_share_a_node_and_have_a_term_each() -> None:
    (batch,) = forest_batches([_call("sys", "yes", "a"), _call("sys", "yes", "b")], 100, CPU)
    assert batch.input_ids_BL.shape == (1, 5)
    assert batch.positions_T.tolist() == [2, 2, 3, 3, 4, 4]
    assert batch.calls_T.tolist() == [0, 1, 0, 1, 0, 1]


def test_calls_that_a_longer_one_contains_go_with_it_whatever_the_budget() -> None:
    calls = [_call("sys", "one"), _call("sysone, ", "two"), _call("sysone, two, ", "three")]
    (batch,) = forest_batches(calls, 4, CPU)
    assert batch.input_ids_BL.shape == (1, len("sysone, two, thre"))


def test_a_tree_is_cut_where_the_least_context_is_repeated() -> None:
    # Three calls fit 15 nodes, but to part the second pair repeats its five common tokens, not one.
    calls = [_call(prompt, "xy") for prompt in ("s1234a", "s1234b", "s5678c", "s5678d")]
    rows = [[chr(call.prompt_ids[-1]) for call in batch.calls] for batch in forest_batches(calls, 15, CPU)]
    assert rows == [["a", "b"], ["c", "d"]]


def _random_groups(seed: int) -> list[ClaimedGroup]:
    """Agents that share a system prompt: each call extends the last, rewrites it or starts afresh."""
    chance = random.Random(seed)

    def ids(most: int) -> list[int]:
        return chance.choices(range(VOCABULARY), k=chance.randint(1, most))

    system, answers = ids(10), [ids(4) for _ in range(3)]
    groups = []
    for g in range(3):
        task = system + ids(8)
        members = []
        for m in range(4):
            history, calls = task, []
            for _ in range(chance.randint(1, 4)):
                tokens = chance.choice([*answers, ids(6)])
                calls.append(
                    completion(
                        prompt=history,
                        tokens=tokens,
                        logprobs=[chance.uniform(-7, -3) for _ in tokens],
                        sampling={"temperature": chance.choice([0.7, 1.0])},
                    )
                )
                history = chance.choice([history + tokens + ids(4), history[: -len(history) // 2] + ids(4), task])
            members.append(member(f"{g}{m}", float(m % 2 + (m == 3)), tuple(calls)))
        groups.append(group(*members))
    return groups


def _saved(config: PretrainedConfig, folder: Path) -> str:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return str(folder)


def _stepped(base_model: str, groups: list[ClaimedGroup], **fields: Any) -> tuple[Trainer, dict[str, float]]:
    """A trainer whose adapter is no longer zero, after a step."""
    trainer = Trainer(base_model, LoraOptions(rank=8), OPTIONS.model_copy(update=fields))
    torch.manual_seed(2)
    for name, weight in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return trainer, trainer.step(groups).metrics


def _assert_same_step(got: tuple[Trainer, dict[str, float]], expected: tuple[Trainer, dict[str, float]]) -> None:
    for name in ("loss", "mismatch_kl", "ratio_max", "clip_fraction", "entropy", "tokens", "unique_tokens"):
        assert got[1][name] == pytest.approx(expected[1][name], rel=1e-4), name
    gradients = dict(expected[0].model.named_parameters())
    for name, weight in got[0].model.named_parameters():
        if weight.requires_grad:
            reference = gradients[name].grad
            assert weight.grad is not None
            assert reference is not None
            assert float(reference.norm()) > 0
            assert float((weight.grad - reference).norm() / reference.norm()) < 1e-4, name


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_and_every_gradient_equal_those_of_one_row_per_call(architecture: str, tmp_path: Path) -> None:
    base_model = _saved(ARCHITECTURES[architecture], tmp_path)
    for seed in range(3):
        groups = _random_groups(seed)
        forest = _stepped(base_model, groups, layout="forest")
        assert forest[1]["unique_tokens"] < 0.8 * forest[1]["dense_tokens"]
        _assert_same_step(forest, _stepped(base_model, groups, layout="padded", micro_batch_tokens=1))


@pytest.mark.slow
def test_the_order_of_groups_and_calls_and_the_budget_change_nothing(base_model: str) -> None:
    groups = _random_groups(5)
    expected = _stepped(base_model, groups)
    permuted = [
        replace(g, members=tuple(replace(m, completions=m.completions[::-1]) for m in g.members[::-1]))
        for g in groups[::-1]
    ]
    _assert_same_step(_stepped(base_model, permuted), expected)
    for budget in (1, 25, 4096):
        _assert_same_step(_stepped(base_model, groups, micro_batch_tokens=budget), expected)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MistralConfig(**SHAPE, sliding_window=4), "window of 4 tokens"),
        (Qwen3Config(**SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=1), "sliding_attention"),
        (FalconConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=64, alibi=True), "raises"),
        (RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64), "are off by"),
    ],
    ids=["mistral", "qwen3", "falcon", "rwkv"],
)
def test_a_model_that_cannot_take_a_forest_row_is_trained_on_padded_rows_and_the_log_says_why(
    config: PretrainedConfig, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base_model = _saved(config, tmp_path)
    groups = [group(member("a", 1.0), member("b", 0.0))]
    automatic = _stepped(base_model, groups)
    assert reason in caplog.text
    _assert_same_step(automatic, _stepped(base_model, groups, layout="padded"))
    with pytest.raises(TrainingError, match=reason):
        Trainer(base_model, LoraOptions(rank=8), TrainingOptions(layout="forest"))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_rounding_is_no_obstacle(threads: int) -> None:
    """Sums in another order moved the log-probabilities of a real model by 4e-4 here."""
    torch.set_num_threads(threads)
    try:
        trainer = Trainer(str(tiny_model()), LoraOptions(rank=8), TrainingOptions(layout="forest"))
        assert obstacle(trainer.model) is None
    finally:
        torch.set_num_threads(1)
