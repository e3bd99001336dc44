"""Every family of base models: trained, saved, resumed, shared prefixes, and served by the real engine."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers.modeling_layers import GradientCheckpointingLayer

from art_sdk.backend.engine import Engine, EngineClient, EngineOptions
from art_sdk.backend.probe import probe
from art_sdk.errors import TrainingError
from art_sdk.store.batch import ClaimedGroup
from art_sdk.training.forest import obstacle
from art_sdk.training.model import load_policy
from art_sdk.training.options import LoraOptions, TrainingOptions
from art_sdk.training.step import Trainer
from examples.tiny_model import tiny_model

from .build import adapter_weights, same
from .families import FAMILIES
from .test_forest import _assert_same_step, _random_groups, _stepped

_EXPERTS = (
    "to serve adapters vLLM 0.32 computes experts by Triton, which its CPU build lacks: the engine starts, and dies of "
    "the first call (module 'triton.language' has no attribute 'bfloat16')"
)
NOT_ON_A_CPU = {"qwen3-moe": _EXPERTS, "deepseek-v3": _EXPERTS}

every_family = pytest.mark.parametrize("family", FAMILIES)

BaseModels = Callable[[str], str]


@pytest.fixture(scope="session")
def base_models(tmp_path_factory: pytest.TempPathFactory) -> BaseModels:
    """The folder of a family's tiny model, written when it is first asked for."""
    folders: dict[str, str] = {}

    def folder(family: str) -> str:
        if family not in folders:
            folders[family] = FAMILIES[family].save(tmp_path_factory.mktemp(family))
        return folders[family]

    return folder


@every_family
def test_a_step_is_saved_and_resumed(
    family: str, base_models: BaseModels, lora: LoraOptions, groups: list[ClaimedGroup], tmp_path: Path
) -> None:
    options = TrainingOptions(learning_rate=1e-2)
    trainer = Trainer(base_models(family), lora, options)
    before = adapter_weights(trainer)
    assert trainer.step(groups).learned
    trainer.save(tmp_path / "1")
    resumed = Trainer(base_models(family), lora, options, resume=tmp_path / "1")
    assert resumed.version == 1
    assert same(adapter_weights(resumed), adapter_weights(trainer))
    assert not same(before, adapter_weights(trainer))


@every_family
def test_loss_and_every_gradient_are_those_of_one_row_per_call(
    family: str, base_models: BaseModels, caplog: pytest.LogCaptureFixture
) -> None:
    groups = _random_groups(0)
    automatic = _stepped(base_models(family), groups)
    assert automatic[1]["unique_tokens"] < 0.8 * automatic[1]["dense_tokens"]
    _assert_same_step(automatic, _stepped(base_models(family), groups, layout="padded", micro_batch_tokens=1))

    reason = obstacle(automatic[0].model)
    expected = FAMILIES[family].obstacle
    if expected is None:
        assert reason is None
        assert "padded" not in caplog.text
    else:
        assert expected in str(reason)
        assert expected in caplog.text


@every_family
def test_checkpointing_computes_layers_again_and_changes_no_gradient(family: str, base_models: BaseModels) -> None:
    groups = _random_groups(1)
    kept = _stepped(base_models(family), groups)
    again = _stepped(base_models(family), groups, checkpointing=True)
    _assert_same_step(kept, again)
    calls: list[int] = []
    for trainer, _ in (kept, again):
        calls.append(0)
        layer = next(m for m in trainer.model.modules() if isinstance(m, GradientCheckpointingLayer))
        norm = next(module for name, module in layer.named_modules() if name.endswith("layernorm"))
        norm.register_forward_hook(lambda *_: calls.append(calls.pop() + 1))
        trainer.step(groups)
        assert not any(module.training for module in layer.children())
    assert calls[1] == 2 * calls[0]


@every_family
def test_all_linear_is_what_the_engine_can_serve(family: str, base_models: BaseModels, lora: LoraOptions) -> None:
    """Never the router, the experts, or what multi-head latent attention absorbs into other matrices."""
    model = load_policy(base_models(family), lora)
    adapted = {name.split(".lora_")[0] for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name.split(".")[-1] for name in adapted} == FAMILIES[family].adapted
    assert not [name for name in adapted if ".experts" in name or name.endswith(".gate")]
    assert not model.peft_config["default"].rank_pattern


@pytest.mark.parametrize(
    ("family", "layer"), [("qwen3-moe", "gate"), ("qwen3-moe", "down_proj"), ("deepseek-v3", "kv_b_proj")]
)
def test_layers_that_the_engine_cannot_serve_are_refused(family: str, layer: str, base_models: BaseModels) -> None:
    with pytest.raises(TrainingError, match=f"an adapter on {layer}: leave"):
        load_policy(base_models(family), LoraOptions(rank=8, target_modules=(layer, "o_proj")))


@pytest.mark.engine
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama"])  # the other tests' engine is one
async def test_the_engine_serves_what_was_trained(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    base_model = FAMILIES[family].save(folder, tokenizer=tiny_model())
    options = EngineOptions(
        base_model=base_model,
        served_names=("p@0",),
        lora_rank=8,
        max_model_len=256,
        max_num_seqs=4,
        kv_cache_gb=0.25,
    )
    if family in NOT_ON_A_CPU and options.on_cpu():
        pytest.skip(NOT_ON_A_CPU[family])
    trainer, _ = _stepped(base_model, _random_groups(0))
    trainer.save(tmp_path / "1")
    engine = Engine(options, log=tmp_path / "engine.log")
    try:
        engine.start()
        async with EngineClient(engine.base_url, engine.api_key) as client:
            await client.load("p@1", tmp_path / "1")
            result = await probe(client, "p@1", "p@0", tmp_path / "1")
    finally:
        engine.stop()
    assert result.accepted, result
    assert result.served_share == pytest.approx(1.0, abs=0.2), result
