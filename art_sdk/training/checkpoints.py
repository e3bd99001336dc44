"""A version directory appears whole or not at all, and is never rewritten.

It is written under a temporary name beside the final one, synced to disk and renamed. The adapter
lies at its root, where vLLM and PEFT look for it:

    adapter_model.safetensors, adapter_config.json
    optimizer.pt      AdamW's moments (tensors and numbers only: read with `weights_only`)
    rng.json          states of the random generators of torch, Python and NumPy
    trainer.json      version, base model, lora and training options
    probe.json        token sequences with the log-probabilities that a server of this version must give
"""

import json
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast
from uuid import uuid4

import numpy as np
import torch
from peft import PeftModel
from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import TrainingError
from .options import LoraOptions, TrainingOptions


class TrainerState(BaseModel):
    """What `trainer.json` holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    base_model: str
    lora: LoraOptions
    options: TrainingOptions
    memory: dict[str, float] = {}
    """What controllers and baselines keep from step to step."""
    groups: tuple[str, ...] = ()
    """The groups that the step claimed."""


@dataclass(frozen=True)
class ProbeSequence:
    """`logprobs[i]` (the version's) and `base_logprobs[i]` are natural logs of the probability of
    `token_ids[i]` after `prompt_ids + token_ids[:i]`, at temperature 1, computed in float32."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    base_logprobs: tuple[float, ...]


def save_version(
    directory: Path,
    *,
    model: PeftModel,
    optimizer: torch.optim.Optimizer,
    state: TrainerState,
    probe: list[ProbeSequence],
) -> None:
    """Write a version. Raises `TrainingError` if `directory` exists, `OSError` if the disk refuses."""
    if directory.exists():
        raise TrainingError(
            f"{directory} exists, and a version is never rewritten: save under the next version's name."
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = directory.with_name(f".{directory.name}.{uuid4().hex}")
    unfinished.mkdir()
    try:
        # Without save_embedding_layers=False PEFT may ask the hub whether the vocabulary was resized.
        model.save_pretrained(str(unfinished), save_embedding_layers=False)
        torch.save(optimizer.state_dict(), unfinished / "optimizer.pt")
        _write_json(unfinished / "rng.json", _rng_states())
        _write_json(unfinished / "trainer.json", state.model_dump(mode="json"))
        _write_json(unfinished / "probe.json", {"sequences": [vars(sequence) for sequence in probe]})
        for path in [*unfinished.rglob("*"), unfinished]:
            _sync(path)
        unfinished.rename(directory)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    _sync(directory.parent)


def read_state(directory: Path) -> TrainerState:
    """`trainer.json` of a version. Raises `TrainingError` if there is none, or it isn't one."""
    try:
        return TrainerState.model_validate_json((directory / "trainer.json").read_text())
    except (OSError, ValidationError) as error:
        raise TrainingError(
            f"{directory} can't be resumed from: expected the directory of a saved version: {error}"
        ) from error


def restore(directory: Path, optimizer: torch.optim.Optimizer) -> None:
    """Put a version's optimizer moments and random states back. The adapter is `load_policy`'s to load.

    Raises `TrainingError` for a folder that lacks them or holds them in part.

    Learning rate and weight decay stay those of `optimizer`: they may be changed between two runs.
    """
    try:
        saved = torch.load(directory / "optimizer.pt", weights_only=True, map_location="cpu")
        current = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": saved["state"], "param_groups": current})
        states = json.loads((directory / "rng.json").read_text())
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, UnpicklingError) as error:
        raise TrainingError(
            f"version {directory} can't be resumed from: expected a whole optimizer.pt and rng.json there, got "
            f"{type(error).__name__}: {error}. Restore the folder, or start the policy again under another name."
        ) from error
    torch.set_rng_state(torch.tensor(states["torch"], dtype=torch.uint8))
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))


def _rng_states() -> dict[str, Any]:
    name, keys, *rest = cast(tuple[Any, ...], np.random.get_state(legacy=True))
    return {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": [name, keys.tolist(), *rest],
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, allow_nan=False))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
