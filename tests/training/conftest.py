"""A tiny Llama with random weights, and groups of trajectories sampled from nothing in particular."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from art_sdk.store.batch import ClaimedGroup
from art_sdk.training.options import LoraOptions

from .build import VOCABULARY, completion, member


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Models as small as these are slower with more, and the tests run beside each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("base")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return str(folder)


@pytest.fixture
def lora() -> LoraOptions:
    return LoraOptions(rank=8)


@pytest.fixture
def groups() -> list[ClaimedGroup]:
    """Three groups of four trajectories, of one to three calls of different lengths."""
    chance = random.Random(3)
    return [
        ClaimedGroup(
            group_id=f"group-{g}",
            policy="p",
            members=tuple(
                member(
                    f"{g}{m}",
                    reward=float(m % 2 + g * (m == 3)),
                    completions=tuple(
                        completion(
                            prompt=chance.choices(range(VOCABULARY), k=chance.randint(1, 9)),
                            tokens=chance.choices(range(VOCABULARY), k=chance.randint(1, 5)),
                            sampling={"temperature": 0.7 if m == 2 else 1.0},
                        )
                        for _ in range(chance.randint(1, 3))
                    ),
                )
                for m in range(4)
            ),
        )
        for g in range(3)
    ]
