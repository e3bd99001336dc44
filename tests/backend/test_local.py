"""What `LocalBackend` makes of its arguments, when a process starts again, and how long a step is waited for."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save_file

from art_sdk.backend.local import LocalBackend, may_restart
from art_sdk.errors import ConfigError, EngineError, StoreError
from art_sdk.store import steps
from art_sdk.store.database import Database
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


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'art.db'}")
    yield opened
    opened.close()


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


def test_waiting_for_a_step_says_that_its_version_was_rejected(
    model: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LocalBackend(base_model=model, policy="support", home=model.parent / "home")
    step = {"outcomes": (), "metrics": {}, "started_at": 1, "version": 1, "path": model, "note": None}
    steps.register_policy(database, "support", "m")
    steps.record_step(database, "support", owner="w", groups=(), **step)  # type: ignore[arg-type]
    steps.reject(database, "support", 1, "served as the base model")
    monkeypatch.setattr(backend, "database", database, raising=False)
    with pytest.raises(EngineError, match="support@1 was rejected: served as the base model"):
        backend.wait_for_step(timeout=60)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x08" + bytes(7)])
def test_a_base_model_whose_weights_are_not_there_is_named_before_anything_starts(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(EngineError, match=r"model\.safetensors is not a whole safetensors file .*: download"):
        LocalBackend(base_model=model, policy="support", home=model.parent / "home")


def test_a_base_model_that_is_nowhere_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"'acme/no-such-model' is neither a folder nor a model .*: check the name"):
        LocalBackend(base_model="acme/no-such-model", policy="support", home=tmp_path)
