"""The real engine behind the real gateway: tokens, logprobs, adapters and the probe."""

import asyncio
import json
import math
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from art_sdk.backend.engine import Engine, EngineClient
from art_sdk.backend.gateway import create_app
from art_sdk.backend.probe import probe
from art_sdk.backend.router import PolicyRouter
from art_sdk.capture.records import Completion, Record
from art_sdk.errors import EngineError

pytestmark = pytest.mark.engine

BFLOAT16 = 0.1
"""Mean nats a token between decoding and scoring the same tokens: 0.036 was measured, 0.18 for one token."""

CHAT: dict[str, Any] = {
    "model": "support",
    "messages": [{"role": "user", "content": "Write two sentences about the sea."}],
    "max_tokens": 32,
}


class Serving:
    """A gateway in front of the engine, and the completions it recorded."""

    def __init__(self, client: httpx.AsyncClient, completions: list[Completion]) -> None:
        self.client = client
        self.completions = completions


@pytest.fixture
async def serving(engine: Engine) -> AsyncIterator[Serving]:
    router = PolicyRouter(engine.base_url, engine.api_key)
    router.serve("support@0")
    router.flip("support", "support@0")
    completions: list[Completion] = []

    def record(made: Record) -> None:
        assert isinstance(made, Completion)
        completions.append(made)

    app = create_app(router=router, policies={"support"}, record=record, api_key="key")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://gateway",
        headers={"Authorization": "Bearer key"},
        timeout=120,
    ) as client:
        yield Serving(client, completions)


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.base_url, engine.api_key) as client:
        yield client


async def test_recorded_ids_decode_to_the_text_and_score_as_recorded(
    engine: Engine, serving: Serving, client: EngineClient
) -> None:
    from transformers import AutoTokenizer

    answer = await serving.client.post("/v1/chat/completions", json={**CHAT, "n": 2, "seed": 5})
    assert answer.status_code == 200, answer.text
    assert len(serving.completions) == 2
    tokenizer = AutoTokenizer.from_pretrained(engine.options.base_model)
    assert "about the sea" in tokenizer.decode(serving.completions[0].prompt_ids)
    for completion, choice in zip(serving.completions, answer.json()["choices"], strict=True):
        text = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        assert text == choice["message"]["content"]
        assert len(completion.token_ids) == len(completion.logprobs) <= 32
        assert all(map(math.isfinite, completion.logprobs))
        scored = await client.logprobs("support@0", completion.prompt_ids, completion.token_ids)
        errors = [abs(a - b) for a, b in zip(scored, completion.logprobs, strict=True)]
        assert sum(errors) / len(errors) < BFLOAT16


async def test_the_token_that_ends_an_answer_is_recorded_with_it(engine: Engine, serving: Serving) -> None:
    from transformers import AutoTokenizer

    question = [{"role": "user", "content": "Answer with one word: what is the capital of France?"}]
    body = {**CHAT, "messages": question, "temperature": 0, "max_tokens": 64}
    answer = (await serving.client.post("/v1/chat/completions", json=body)).json()
    (completion,) = serving.completions
    assert answer["choices"][0]["finish_reason"] == completion.finish_reason == "stop"
    assert len(completion.token_ids) == len(completion.logprobs) == answer["usage"]["completion_tokens"]
    assert completion.token_ids[-1] == AutoTokenizer.from_pretrained(engine.options.base_model).eos_token_id


async def test_logprobs_are_those_of_the_temperature_that_was_sampled_with(serving: Serving) -> None:
    for temperature in (1.0, 0.25):
        body = {**CHAT, "temperature": temperature, "seed": 5, "max_tokens": 16}
        await serving.client.post("/v1/chat/completions", json=body)
    warm, cold = (sum(c.logprobs) / len(c.logprobs) for c in serving.completions)
    assert cold > warm


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_a_stream_is_recorded_as_the_whole_answer_is(serving: Serving, path: str) -> None:
    asked = {"prompt": "The sea is", **CHAT} if path == "completions" else CHAT
    body = {key: value for key, value in asked.items() if not (path == "completions" and key == "messages")}
    body |= {"temperature": 0, "max_tokens": 12}
    await serving.client.post(f"/v1/{path}", json=body)
    async with serving.client.stream("POST", f"/v1/{path}", json={**body, "stream": True}) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    whole, streamed = serving.completions
    assert (streamed.prompt_ids, streamed.token_ids) == (whole.prompt_ids, whole.token_ids)
    assert streamed.finish_reason == whole.finish_reason
    assert streamed.logprobs == pytest.approx(whole.logprobs, abs=2 * BFLOAT16)


async def test_tools_in_a_request_are_accepted(serving: Serving) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    answer = await serving.client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 4, "tools": [tool]})
    assert answer.status_code == 200, answer.text
    assert len(serving.completions) == 1


async def test_a_refused_request_is_explained(serving: Serving) -> None:
    answer = await serving.client.post("/v1/chat/completions", json={**CHAT, "temperature": -1})
    assert answer.status_code == 400
    assert "temperature must be non-negative" in answer.json()["error"]["message"]


@pytest.fixture(scope="session")
def adapter(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with random weights, saved by PEFT, with the trainer's own logprobs beside it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(engine.options.base_model)
    base = AutoModelForCausalLM.from_pretrained(engine.options.base_model, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")).eval()
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.02)

    prompt_ids = tokenizer("The capital of France is").input_ids
    token_ids = tokenizer(" Paris, and the river that runs through it is called the Seine.").input_ids

    def score() -> list[float]:
        with torch.no_grad():
            logits = model(torch.tensor([prompt_ids + token_ids])).logits[0]
        at = logits[len(prompt_ids) - 1 : -1].log_softmax(-1)
        return [float(at[i, token]) for i, token in enumerate(token_ids)]

    folder = tmp_path_factory.mktemp("versions") / "1"
    model.save_pretrained(folder)
    sequence = {"prompt_ids": prompt_ids, "token_ids": token_ids, "logprobs": score()}
    with model.disable_adapter():
        sequence["base_logprobs"] = score()
    (folder / "probe.json").write_text(json.dumps({"sequences": [sequence]}))
    return folder


async def test_a_version_that_is_served_passes_the_probe(client: EngineClient, adapter: Path) -> None:
    await client.load("support@1", adapter)
    assert "support@1" in await client.loaded()
    result = await probe(client, "support@1", "support@0", adapter)
    assert result.accepted, result
    assert 0.5 < result.served_share < 1.5
    await client.unload("support@1")
    assert "support@1" not in await client.loaded()


async def test_a_version_with_broken_keys_loads_and_is_rejected(
    client: EngineClient, adapter: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "2"
    shutil.copytree(adapter, broken)
    weights = load_file(broken / "adapter_model.safetensors")
    renamed = {key.replace("model.model.layers", "model.transformer.layers"): value for key, value in weights.items()}
    assert renamed.keys().isdisjoint(weights)
    save_file(renamed, broken / "adapter_model.safetensors", metadata={"format": "pt"})
    await client.load("support@2", broken)
    result = await probe(client, "support@2", "support@0", broken)
    await client.unload("support@2")
    assert not result.accepted
    assert result.served_share == pytest.approx(0.0, abs=0.05)


async def test_a_version_is_scored_while_agents_are_answered(
    client: EngineClient, adapter: Path, engine: Engine
) -> None:
    """With the head wrapped for adapters the engine died of this."""
    await client.load("support@3", adapter)
    body = {"model": "support@3", "prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {engine.api_key}"}
    async with httpx.AsyncClient(base_url=engine.base_url, headers=headers, timeout=120) as agent:
        answers = [asyncio.ensure_future(agent.post("/v1/completions", json=body)) for _ in range(4)]
        await asyncio.sleep(0.5)
        result = await probe(client, "support@3", "support@0", adapter)
        assert not all(answer.done() for answer in answers), "nothing was being sampled while the probe ran"
        assert [(await answer).status_code for answer in answers] == [200] * 4
    assert result.accepted, result
    await client.unload("support@3")


@pytest.mark.parametrize("fault", ["no weights", "no json", "no folder"])
async def test_a_broken_folder_is_an_engine_error(
    client: EngineClient, adapter: Path, tmp_path: Path, fault: str
) -> None:
    folder = tmp_path / "3"
    if fault != "no folder":
        folder.mkdir()
        config = (adapter / "adapter_config.json").read_text()
        (folder / "adapter_config.json").write_text(config if fault == "no weights" else "{")
    with pytest.raises(EngineError, match=r"refused to load support@3 from "):
        await client.load("support@3", folder)
    assert "support@3" not in await client.loaded()
    assert await client.health()
