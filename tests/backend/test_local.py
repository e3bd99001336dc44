"""What `LocalBackend` makes of its arguments, when a process starts again, and how long a step is waited for."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save_file

from art_sdk.backend.local import LocalBackend, may_restart
from art_sdk.errors import ConfigError, StoreError
from art_sdk.store.steps import Step
from art_sdk.training.options import LoraOptions

AWAY = StoreError("the store is away")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model with one layer."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    matrix = np.zeros((2, 2), dtype=np.float32)
    save_file(
        {f"model.layers.0.attn.{name}.weight": matrix for name in ("q_proj", "v_proj")}, folder / "model.safetensors"
    )
    return folder


def test_a_process_that_keeps_dying_is_given_up() -> None:
    assert may_restart([0.0, 10.0, 20.0], 20.0)
    assert not may_restart([0.0, 10.0, 20.0, 30.0], 30.0)
    assert may_restart([0.0, 10.0, 20.0, 700.0], 700.0)


@pytest.mark.parametrize("name", ["", "  "])
def test_a_base_model_without_a_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="base_model is empty"):
        LocalBackend(base_model=name, policy="support", home=tmp_path)


def test_a_base_model_in_the_folder_at_hand_is_asked_for_by_the_folders_name(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    backend = LocalBackend(base_model=".", policy="support", home=model.parent / "home")
    assert (backend.options.base_name, backend.options.base_model) == ("tiny", str(model))


def test_the_engine_is_ready_for_the_layers_that_are_trained_and_no_others(model: Path) -> None:
    def engine_layers(lora: LoraOptions) -> tuple[str, ...] | None:
        backend = LocalBackend(base_model=model, policy="support", home=model.parent / "home", lora=lora)
        return backend._engine.options.lora_layers

    assert engine_layers(LoraOptions()) is None
    assert engine_layers(LoraOptions(target_modules=("v_proj",))) == ("v_proj",)
    with pytest.raises(
        ConfigError, match=r"target_modules: .*tiny has no c_attn; its linear layers are q_proj, v_proj"
    ):
        engine_layers(LoraOptions(target_modules=("v_proj", "c_attn")))


def test_waiting_for_a_step_outlasts_a_store_that_is_away(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = LocalBackend(base_model=model, policy="support", home=model.parent / "home")
    step = Step("support", 1, None, 0, 1, {}, "nothing to learn from")
    monkeypatch.setattr("art_sdk.backend.local.steps.steps", Mock(side_effect=[AWAY, AWAY, [step]]))
    monkeypatch.setattr(backend, "database", None, raising=False)
    monkeypatch.setattr(backend, "_seen_step", 0, raising=False)
    assert backend.wait_for_step(timeout=60) == step
    assert len([r for r in caplog.records if "waiting until it is back" in r.getMessage()]) == 1
