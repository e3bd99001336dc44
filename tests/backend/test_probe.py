"""The probe believes a version only when the engine shows the trainer's change."""

import json
import math
import random
from pathlib import Path

import httpx
import pytest

from art_sdk.backend.engine import EngineClient
from art_sdk.backend.probe import judge, probe
from art_sdk.errors import EngineError

TOKENS = 96
NOISE = 0.04


def logprobs(change: float, seed: int = 0) -> tuple[list[float], list[float], list[float], list[float]]:
    """Trained, base, served and served base: an engine that serves the version, with the noise of bfloat16."""
    draw = random.Random(seed)
    base = [draw.uniform(-4, 0) for _ in range(TOKENS)]
    trained = [b + draw.gauss(0, change) for b in base]
    served = [t + draw.gauss(0, NOISE) for t in trained]
    served_base = [b + draw.gauss(0, NOISE) for b in base]
    return trained, base, served, served_base


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("change", [0.06, 0.3, 2.0])
def test_a_served_version_is_accepted(change: float, seed: int) -> None:
    result = judge(*logprobs(change, seed))
    assert result.accepted, result


@pytest.mark.parametrize("change", [0.06, 0.3, 2.0])
def test_an_engine_that_answers_with_the_base_model_is_rejected(change: float) -> None:
    trained, base, _, served_base = logprobs(change)
    result = judge(trained, base, served_base, served_base)
    assert not result.accepted
    assert result.served_share == 0.0
    assert "exactly as the base model" in result.reason


def test_another_version_is_rejected() -> None:
    trained, base, _, served_base = logprobs(1.0)
    _, _, other, _ = logprobs(1.0, seed=1)
    assert not judge(trained, base, other, served_base).accepted


def test_an_adapter_at_twice_its_scale_is_rejected() -> None:
    trained, base, _, served_base = logprobs(1.0)
    doubled = [s + 2 * (t - b) for s, t, b in zip(served_base, trained, base, strict=True)]
    assert not judge(trained, base, doubled, served_base).accepted


@pytest.mark.parametrize(("change", "lost"), [(0.11, 0.1), (0.18, 0.15), (1.2, 0.3), (1.8, 0.25)])
def test_what_bfloat16_swallows_of_a_change_does_not_reject_a_version(change: float, lost: float) -> None:
    """Changes and losses of the size seen with SmolLM2-135M after one and two steps of 1e-4 and 1e-3."""
    trained, base, _, served_base = logprobs(change)
    shown = [
        s + math.copysign(max(0.0, abs(t - b) - lost), t - b)
        for s, t, b in zip(served_base, trained, base, strict=True)
    ]
    assert judge(trained, base, shown, served_base).accepted


def test_an_engine_that_is_off_for_the_base_model_too_is_rejected() -> None:
    trained, base, served, served_base = logprobs(0.3)
    result = judge(trained, base, [s - 0.4 for s in served], [s - 0.4 for s in served_base])
    assert not result.accepted


def test_a_change_below_the_noise_must_only_be_seen() -> None:
    trained, base, served, served_base = logprobs(0.002)
    assert judge(trained, base, served, served_base).accepted
    hidden = judge(trained, base, served_base, served_base)
    assert not hidden.accepted
    assert "exactly as the base model" in hidden.reason


def test_a_version_that_equals_the_base_is_accepted() -> None:
    _, base, _, served_base = logprobs(0.0)
    result = judge(base, base, served_base, served_base)
    assert result.accepted
    assert math.isnan(result.served_share)


def test_a_logprob_that_is_no_number_is_rejected() -> None:
    trained, base, served, served_base = logprobs(0.3)
    assert not judge([math.nan, *trained[1:]], base, served, served_base).accepted


def test_unequal_lengths_are_an_error() -> None:
    with pytest.raises(ValueError, match="as many logprobs"):
        judge([-1.0], [-1.0], [-1.0], [])
    with pytest.raises(ValueError, match="as many logprobs"):
        judge([], [], [], [])


def engine(served: dict[str, float]) -> EngineClient:
    """An engine that gives each token of a model the same logprob."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        scored = [{str(token): {"logprob": served[body["model"]]}} for token in body["prompt"]]
        return httpx.Response(200, json={"choices": [{"prompt_logprobs": scored}]})

    return EngineClient("http://engine", "key", transport=httpx.MockTransport(answer))


async def test_the_file_of_the_version_is_scored_under_both_names(tmp_path: Path) -> None:
    one = {"prompt_ids": [1, 2], "token_ids": [3, 4], "logprobs": [-1.0, -1.0], "base_logprobs": [-2.0, -2.0]}
    (tmp_path / "probe.json").write_text(json.dumps({"sequences": [one, one]}))
    async with engine({"support@1": -1.01, "support@0": -2.01}) as client:
        assert (await probe(client, "support@1", "support@0", tmp_path)).accepted
    async with engine({"support@1": -2.01, "support@0": -2.01}) as client:
        assert not (await probe(client, "support@1", "support@0", tmp_path)).accepted


@pytest.mark.parametrize("content", [None, "{", '{"sequences": [{}]}', '{"sequences": []}'])
async def test_a_version_without_a_sound_probe_is_an_engine_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "probe.json").write_text(content)
    async with engine({}) as client:
        with pytest.raises(EngineError, match=r"probe\.json is no probe of a version"):
            await probe(client, "support@1", "support@0", tmp_path)
