import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from art_sdk.errors import TrainingError
from art_sdk.store.batch import ClaimedGroup
from art_sdk.training import checkpoints
from art_sdk.training.model import load_policy
from art_sdk.training.options import LoraOptions, TrainingOptions
from art_sdk.training.step import Trainer

from .build import adapter_weights, same

OPTIONS = TrainingOptions(learning_rate=1e-2)


@pytest.fixture
def trainer(base_model: str, lora: LoraOptions, groups: list[ClaimedGroup]) -> Trainer:
    trainer = Trainer(base_model, lora, OPTIONS)
    trainer.step(groups)
    return trainer


@pytest.mark.slow
def test_a_resumed_run_goes_on_to_the_same_bits(
    trainer: Trainer, base_model: str, lora: LoraOptions, groups: list[ClaimedGroup], tmp_path: Path
) -> None:
    trainer.step(groups[:2])
    trainer.save(tmp_path / "2")
    resumed = Trainer(base_model, lora, OPTIONS, resume=tmp_path / "2")
    assert resumed.version == 2
    assert same(adapter_weights(trainer), adapter_weights(resumed))
    for _ in range(2):
        trainer.step(groups)
        resumed.step(groups)
    assert resumed.version == 4
    assert same(adapter_weights(trainer), adapter_weights(resumed))


def test_a_number_that_a_rejected_version_had_is_not_given_again_and_makes_nothing_stale(
    trainer: Trainer, base_model: str, lora: LoraOptions, groups: list[ClaimedGroup], tmp_path: Path
) -> None:
    trainer.save(tmp_path / "1")
    resumed = Trainer(base_model, lora, TrainingOptions(max_staleness=1), resume=tmp_path / "1", given=7)
    assert resumed.version == 1
    assert resumed.step(groups).learned  # sampled by version 0: one version ago, not seven
    assert resumed.version == 8


def test_random_states_come_back(trainer: Trainer, base_model: str, lora: LoraOptions, tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), random.random(), float(np.random.rand())

    trainer.save(tmp_path / "1")
    drawn = draw()
    Trainer(base_model, lora, OPTIONS, resume=tmp_path / "1")
    assert draw() == drawn


def test_the_options_of_the_new_run_win(
    trainer: Trainer, base_model: str, lora: LoraOptions, groups: list[ClaimedGroup], tmp_path: Path
) -> None:
    trainer.save(tmp_path / "1")
    frozen = Trainer(base_model, lora, TrainingOptions(learning_rate=1e-30), resume=tmp_path / "1")
    before = adapter_weights(frozen)
    frozen.step(groups)
    assert same(before, adapter_weights(frozen))


def test_the_adapter_lies_at_the_root_as_servers_expect_it(trainer: Trainer, base_model: str, tmp_path: Path) -> None:
    trainer.save(tmp_path / "1")
    config = json.loads((tmp_path / "1" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == base_model
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (8, 16, 0.0)
    assert not {"lm_head", "embed_tokens"}.intersection(config["target_modules"])
    assert (tmp_path / "1" / "adapter_model.safetensors").is_file()


def test_the_probe_holds_what_the_saved_version_and_the_base_give(
    trainer: Trainer, base_model: str, lora: LoraOptions, tmp_path: Path
) -> None:
    trainer.save(tmp_path / "1")
    sequences = json.loads((tmp_path / "1" / "probe.json").read_text())["sequences"]
    assert len(sequences) == 4
    model = load_policy(base_model, lora, tmp_path / "1")

    def logprobs(sequence: dict[str, list[int]]) -> list[float]:
        logits = model(torch.tensor([sequence["prompt_ids"] + sequence["token_ids"]])).logits[0]
        predicting = logits[len(sequence["prompt_ids"]) - 1 : -1].detach().log_softmax(-1)
        return [float(row[token]) for row, token in zip(predicting, sequence["token_ids"], strict=True)]

    for sequence in sequences:
        assert sequence["logprobs"] == pytest.approx(logprobs(sequence), abs=1e-5)
        with model.disable_adapter():
            assert sequence["base_logprobs"] == pytest.approx(logprobs(sequence), abs=1e-5)
    assert any(sequence["logprobs"] != sequence["base_logprobs"] for sequence in sequences)


def test_a_version_is_never_rewritten(trainer: Trainer, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(TrainingError, match="never rewritten"):
        trainer.save(tmp_path / "1")


@pytest.mark.parametrize("stops", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_save_leaves_nothing_and_can_be_repeated(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: BaseException
) -> None:
    def fail(path: Path) -> None:
        raise stops

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_sync", fail)
        with pytest.raises(type(stops)):
            trainer.save(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []
    trainer.save(tmp_path / "1")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_nothing_new_is_not_saved(base_model: str, lora: LoraOptions, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="nothing was learned"):
        Trainer(base_model, lora, OPTIONS).save(tmp_path / "1")


def test_another_adapter_shape_or_an_empty_folder_cannot_be_resumed(
    trainer: Trainer, base_model: str, tmp_path: Path
) -> None:
    trainer.save(tmp_path / "1")
    with pytest.raises(TrainingError, match="rank=16"):
        Trainer(base_model, LoraOptions(rank=16), OPTIONS, resume=tmp_path / "1")
    with pytest.raises(TrainingError, match="can't be resumed"):
        Trainer(base_model, LoraOptions(), OPTIONS, resume=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "rng.json"])
@pytest.mark.parametrize("fault", ["missing", "empty", "cut"])
def test_a_broken_folder_is_named_and_what_to_do(
    trainer: Trainer, base_model: str, lora: LoraOptions, tmp_path: Path, file: str, fault: str
) -> None:
    trainer.save(tmp_path / "1")
    broken = tmp_path / "1" / file
    whole = broken.read_bytes()
    broken.unlink()
    if fault != "missing":
        broken.write_bytes(b"" if fault == "empty" else whole[: len(whole) // 2])
    with pytest.raises(TrainingError, match=rf"{tmp_path / '1'}.*Restore the folder, or start the policy again"):
        Trainer(base_model, lora, OPTIONS, resume=tmp_path / "1")
