"""Tiny models with random weights, one of each family of base models, and what is known of each family."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from .build import VOCABULARY

ATTENTION = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
MLP = frozenset({"gate_proj", "up_proj", "down_proj"})

_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_MOE: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Family:
    """`fields` are what its configuration says beside the shape that all have."""

    config: Callable[..., PretrainedConfig]
    fields: dict[str, Any]
    adapted: frozenset[str] = ATTENTION | MLP
    """Last names of the layers to which "all-linear" gives an adapter."""
    obstacle: str | None = None
    """The beginning of why a row can't hold a forest of its calls; None: it can."""

    def save(self, folder: Path, tokenizer: Path | None = None) -> str:
        """Write a model with random weights; with the tokenizer of the model in `tokenizer`, and its vocabulary."""
        vocabulary = VOCABULARY
        if tokenizer is not None:
            vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
            for file in tokenizer.glob("tokenizer*"):
                shutil.copy(file, folder)
        torch.manual_seed(1)
        config = self.config(**{**_SHAPE, **self.fields}, vocab_size=vocabulary)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
        return str(folder)


FAMILIES = {
    "llama": Family(LlamaConfig, {"head_dim": 32}),
    "qwen2.5": Family(Qwen2Config, {"num_attention_heads": 2}),
    "qwen3": Family(Qwen3Config, {"head_dim": 32}),
    "qwen3-moe": Family(Qwen3MoeConfig, {"head_dim": 32, "num_experts": 4, **_MOE}, ATTENTION),
    "mistral": Family(MistralConfig, {"head_dim": 32, "sliding_window": None}),
    "gemma3": Family(
        Gemma3TextConfig,
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        obstacle="it has layers of type sliding_attention",
    ),
    "deepseek-v3": Family(
        DeepseekV3Config,
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "noaux_tc",  # in the published models, and vLLM looks for it
            "first_k_dense_replace": 1,
            **_MOE,
        },
        frozenset({"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"}),
    ),
}
