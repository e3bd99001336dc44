import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma2Config

from art_sdk.errors import TrainingError
from art_sdk.training.model import load_policy
from art_sdk.training.options import LoraOptions


def test_only_the_adapter_is_trained_in_float32_and_neither_head_nor_embeddings_have_one(
    base_model: str, lora: LoraOptions
) -> None:
    model = load_policy(base_model, lora, dtype=torch.bfloat16)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained
    assert all(".default." in name and "layers" in name for name in trained)
    assert {weight.dtype for weight in trained.values()} == {torch.float32}
    assert not model.training


def test_the_seed_fixes_the_first_weights(base_model: str, lora: LoraOptions) -> None:
    first, again, other = (load_policy(base_model, lora, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_a_missing_model_folder_is_named(lora: LoraOptions) -> None:
    with pytest.raises(TrainingError, match="/nowhere/model"):
        load_policy("/nowhere/model", lora)


def test_a_folder_without_a_model_is_named(lora: LoraOptions, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=str(tmp_path)):
        load_policy(str(tmp_path), lora)


def test_layers_that_do_not_exist_are_named(base_model: str) -> None:
    with pytest.raises(TrainingError, match="c_attn"):
        load_policy(base_model, LoraOptions(target_modules=("c_attn",)))


@pytest.mark.parametrize("damage", ["prefix", "missing", "rank"])
def test_an_adapter_that_does_not_fit_is_refused(
    base_model: str, lora: LoraOptions, tmp_path: Path, damage: str
) -> None:
    load_policy(base_model, lora).save_pretrained(str(tmp_path), save_embedding_layers=False)
    weights = load_file(tmp_path / "adapter_model.safetensors")
    if damage == "prefix":
        weights = {name.replace("base_model.model.", ""): weight for name, weight in weights.items()}
    if damage == "missing":
        weights.popitem()
    if damage == "rank":
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "r": 16}))
    save_file(weights, tmp_path / "adapter_model.safetensors")
    with pytest.raises(TrainingError, match=str(tmp_path)):
        load_policy(base_model, lora, tmp_path)


def test_a_model_that_caps_its_logits_after_the_head_is_refused(lora: LoraOptions, tmp_path: Path) -> None:
    config = Gemma2Config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=64, final_logit_softcapping=0.5,
        initializer_range=0.5,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)  # type: ignore[no-untyped-call]
    with pytest.raises(TrainingError, match="soft-capping"):
        load_policy(str(tmp_path), lora)
