"""The real inference engine, for tests marked `engine`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from art_sdk.backend.engine import Engine, EngineOptions


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """vLLM with the tiny model, once per session; adapters of rank 8 can be loaded into it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from tiny_model import tiny_model

    options = EngineOptions(
        base_model=str(tiny_model()),
        served_names=("support@0", "SmolLM2-135M-Instruct"),
        lora_rank=8,
        max_model_len=2048,
        tool_call_parser="hermes",
    )
    running = Engine(options, log=tmp_path_factory.mktemp("engine") / "engine.log")
    running.start()
    yield running
    running.stop()
