import subprocess
import sys

import pytest
from pydantic import ValidationError

from art_sdk.training.options import LoraOptions, TrainingOptions


@pytest.mark.parametrize("fields", [{"rank": 12}, {"dropout": 0.1}, {"target_modules": ("lm_head",)}])
def test_an_adapter_that_vllm_cannot_serve_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LoraOptions.model_validate(fields)


def test_alpha_defaults_to_twice_the_rank() -> None:
    assert LoraOptions().lora_alpha == 32
    assert LoraOptions(rank=8, alpha=8).lora_alpha == 8


@pytest.mark.parametrize("fields", [{"learning_rate": 0}, {"max_grad_norm": float("nan")}, {"kl": 0.1}])
def test_options_out_of_bounds_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TrainingOptions.model_validate(fields)


def test_options_and_selection_are_imported_without_torch() -> None:
    code = "import sys, art_sdk.training.options, art_sdk.training.tokens; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
