import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch
from pydantic import ValidationError

from art_sdk.capture.records import Completion
from art_sdk.errors import TrainingError
from art_sdk.store.batch import ClaimedGroup
from art_sdk.store.reasons import Reason
from art_sdk.training import step as step_module
from art_sdk.training.advantages import ADVANTAGES
from art_sdk.training.batch import padded_batches, token_logprobs
from art_sdk.training.losses import LOSSES, LossInputs, LossOutputs
from art_sdk.training.options import LoraOptions, TrainingOptions
from art_sdk.training.step import Trainer
from art_sdk.training.tokens import Call

from .build import adapter_weights, completion, group, member, same

OPTIONS = TrainingOptions(learning_rate=1e-2)


def _resampled(trainer: Trainer, groups: list[ClaimedGroup]) -> list[ClaimedGroup]:
    """The same groups, with the log-probabilities that the trainer's own model gives."""

    def logprobs(c: Completion) -> list[float]:
        temperature = c.sampling.get("temperature", 1.0)
        call = Call("t", tuple(c.prompt_ids), tuple(c.token_ids), tuple(c.logprobs), temperature, 0)
        (batch,) = padded_batches([call], 1000, torch.device("cpu"))
        return [float(value) for value in token_logprobs(trainer.model, batch).detach()]

    return [
        replace(
            g,
            members=tuple(
                replace(
                    m,
                    completions=tuple(msgspec.structs.replace(c, logprobs=logprobs(c)) for c in m.completions),
                )
                for m in g.members
            ),
        )
        for g in groups
    ]


def _gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {n: w.grad.clone() for n, w in trainer.model.named_parameters() if w.grad is not None}


def test_the_ratio_is_one_when_the_sampler_is_the_trainer(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup]
) -> None:
    trainer = Trainer(base_model, lora, OPTIONS)
    metrics = trainer.step(_resampled(trainer, groups)).metrics
    assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert abs(metrics["mismatch_kl"]) < 1e-8
    assert metrics["clip_fraction"] == 0


@pytest.mark.slow
def test_loss_and_gradients_equal_those_of_whole_logits_call_by_call(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup]
) -> None:
    options = OPTIONS.model_copy(update={"micro_batch_tokens": 30, "max_grad_norm": 1000.0})
    trainer, reference = Trainer(base_model, lora, options), Trainer(base_model, lora, options)
    metrics = trainer.step(groups).metrics

    total = torch.zeros(())
    tokens = 0
    for g in groups:
        mean = sum(m.reward or 0.0 for m in g.members) / len(g.members)
        for m in g.members:
            advantage = (m.reward or 0.0) - mean
            for c in m.completions:
                logits = reference.model(torch.tensor([c.prompt_ids + c.token_ids])).logits[0]
                predicting = logits[len(c.prompt_ids) - 1 : -1] / c.sampling["temperature"]
                logprobs = predicting.log_softmax(-1)[range(len(c.token_ids)), c.token_ids]
                ratio = (logprobs - torch.tensor(c.logprobs)).exp()
                clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
                total = total - (clipped * (2.0 / ratio).clamp(max=1.0).detach()).sum()
                tokens += len(c.token_ids)
    torch.autograd.backward(total / tokens)

    assert metrics["loss"] == pytest.approx(total.item() / tokens, rel=1e-5)
    expected, got = _gradients(reference), _gradients(trainer)
    assert expected.keys() == got.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_the_size_of_padded_batches_changes_nothing(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup]
) -> None:
    results = []
    for size in (1, 40, 4096):
        trainer = Trainer(base_model, lora, OPTIONS.model_copy(update={"micro_batch_tokens": size}))
        results.append((trainer.step(groups).metrics["loss"], _gradients(trainer)))
    for loss, gradients in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, results[0][1][name], rtol=1e-4, atol=1e-7)


def test_the_order_of_groups_and_members_changes_no_bit(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup]
) -> None:
    trainer, permuted = Trainer(base_model, lora, OPTIONS), Trainer(base_model, lora, OPTIONS)
    trainer.step(groups)
    permuted.step([replace(g, members=g.members[::-1]) for g in groups[::-1]])
    assert same(adapter_weights(trainer), adapter_weights(permuted))


def test_the_advantage_does_not_depend_on_the_number_of_calls(base_model: str, lora: LoraOptions) -> None:
    few = group(member("a", 1.0), member("b", 0.0), member("c", 0.0))
    many = group(member("a", 1.0, (completion(),) * 5), member("b", 0.0), member("c", 0.0))
    advantages = [
        {outcome.trajectory_id: outcome.advantage for outcome in Trainer(base_model, lora, OPTIONS).step([g]).outcomes}
        for g in (few, many)
    ]
    assert advantages[0] == advantages[1] == pytest.approx({"a": 2 / 3, "b": -1 / 3, "c": -1 / 3})


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_weighs_tokens_as_it_says(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup], loss: str
) -> None:
    """On policy the gradient by log π is the advantage over the size: `loss` tells the size by what it adds up to."""
    options = OPTIONS.model_copy(update={"loss": loss, "constant_length": 50})
    trainer = Trainer(base_model, lora, options)
    (g, *_) = _resampled(trainer, groups)
    result = trainer.step([g])
    lengths = {m.trajectory_id: sum(len(c.token_ids) for c in m.completions) for m in g.members}
    divided_by = {
        "tokens": dict.fromkeys(lengths, sum(lengths.values())),
        "trajectories": {identity: 4 * length for identity, length in lengths.items()},
        "constant": dict.fromkeys(lengths, 4 * 50),
    }[LOSSES[loss].normalised_by]
    logprobs = {m.trajectory_id: sum(sum(c.logprobs) for c in m.completions) for m in g.members}
    by_logprob = loss in ("cispo", "reinforce")
    gate = dict.fromkeys(lengths, 1.0)
    if loss == "sapo":
        gate = {o.trajectory_id: 2 / (1.0 if (o.advantage or 0) > 0 else 1.05) for o in result.outcomes}
    expected = -sum(
        (o.advantage or 0)
        * (logprobs[o.trajectory_id] if by_logprob else lengths[o.trajectory_id] * gate[o.trajectory_id])
        / divided_by[o.trajectory_id]
        for o in result.outcomes
    )
    assert result.metrics["loss"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_loss_depends_on_the_size_of_micro_batches(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup], loss: str
) -> None:
    found = []
    for size in (12, 4096):
        options = OPTIONS.model_copy(
            update={"loss": loss, "micro_batch_tokens": size, "kl_coefficient": 0.1, "entropy_coefficient": 0.01}
        )
        trainer = Trainer(base_model, lora, options)
        found.append((trainer.step(groups).metrics["loss"], _gradients(trainer)))
    (loss_value, gradients), (other_loss, others) = found
    assert loss_value == pytest.approx(other_loss, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, others[name], rtol=1e-4, atol=1e-7)


def test_the_kl_to_the_base_is_zero_at_first_and_pulls_back_later(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup]
) -> None:
    def distance(coefficient: float, estimator: str) -> float:
        options = OPTIONS.model_copy(update={"kl_coefficient": coefficient, "kl_estimator": estimator})
        trainer = Trainer(base_model, lora, options)
        for _ in range(4):
            trainer.step(groups[:2])
        (batch,) = padded_batches([Call("t", (1, 2), (3,) * 9, (0.0,) * 9, 1.0, 0)], 100, torch.device("cpu"))
        with torch.no_grad():
            adapted = token_logprobs(trainer.model, batch)
            with trainer.model.disable_adapter():
                return float((adapted - token_logprobs(trainer.model, batch)).abs().mean())

    first = Trainer(base_model, lora, OPTIONS.model_copy(update={"kl_coefficient": 0.1})).step(groups)
    assert first.metrics["kl"] == pytest.approx(0, abs=1e-6)
    free = distance(1e-9, "k3")
    for estimator in ("k1", "k2", "k3"):
        assert distance(3.0, estimator) < 0.7 * free


def test_the_kl_can_be_to_a_past_version(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup], tmp_path: Path
) -> None:
    trainer = Trainer(base_model, lora, OPTIONS)
    trainer.step(groups)
    trainer.save(tmp_path / "1")
    options = OPTIONS.model_copy(update={"kl_coefficient": 0.1, "kl_reference": str(tmp_path / "1")})
    resumed = Trainer(base_model, lora, options, resume=tmp_path / "1")
    assert same(adapter_weights(resumed), adapter_weights(trainer))
    assert resumed.step(groups).metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert abs(resumed.step(groups).metrics["kl"]) > 1e-4
    with pytest.raises(TrainingError, match="nowhere"):
        Trainer(base_model, lora, options.model_copy(update={"kl_reference": str(tmp_path / "nowhere")}))


def test_the_entropy_is_that_of_the_policy_at_the_temperature(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup]
) -> None:
    metrics = Trainer(base_model, lora, OPTIONS).step(groups).metrics
    model = Trainer(base_model, lora, OPTIONS).model
    entropies = []
    for g in groups:
        for c in (c for m in g.members for c in m.completions):
            with torch.no_grad():
                logits = model(torch.tensor([c.prompt_ids + c.token_ids])).logits[0, len(c.prompt_ids) - 1 : -1]
            entropies.append(torch.distributions.Categorical(logits=logits / c.sampling["temperature"]).entropy())
    assert metrics["entropy"] == pytest.approx(float(torch.cat(entropies).mean()), rel=1e-5)


def test_an_entropy_bonus_keeps_the_policy_from_becoming_certain(base_model: str, lora: LoraOptions) -> None:
    def entropy(coefficient: float) -> float:
        trainer = Trainer(base_model, lora, OPTIONS.model_copy(update={"entropy_coefficient": coefficient}))
        for _ in range(10):
            sampled = ((t, completion(tokens=[t], version=trainer.version)) for t in (7, 8, 9, 10))
            g = group(*(member(f"{t}", float(t == 7), (c,)) for t, c in sampled))
            metrics = trainer.step(_resampled(trainer, [g])).metrics
        return metrics["entropy"]

    assert entropy(0.05) > entropy(0.0) + 0.05


def test_more_updates_go_further_from_the_same_data_and_the_clip_holds_them(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup]
) -> None:
    moved = {}
    for updates in (1, 4):
        trainer = Trainer(base_model, lora, OPTIONS.model_copy(update={"updates": updates, "ratio": "proximal"}))
        before = adapter_weights(trainer)
        metrics = trainer.step(_resampled(trainer, groups)).metrics
        assert trainer.version == 1
        assert metrics["ratio_max"] == pytest.approx(1, abs=1e-5)
        moved[updates] = sum(float((w - before[n]).norm()) for n, w in adapter_weights(trainer).items())
    assert moved[4] > 1.5 * moved[1]


def test_a_later_update_that_fails_takes_the_earlier_ones_back(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(base_model, lora, OPTIONS.model_copy(update={"updates": 2}))
    trainer.step(groups)
    weights, moments = adapter_weights(trainer), copy.deepcopy(trainer._optimizer.state_dict())
    update, calls = trainer._update, []

    def fail_at_second(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise TrainingError("not finite")
        return update(*given)

    monkeypatch.setattr(trainer, "_update", fail_at_second)
    with pytest.raises(TrainingError, match="not finite"):
        trainer.step(groups)
    assert len(calls) == 2
    assert trainer.version == 1
    assert same(weights, adapter_weights(trainer))
    for index, state in moments["state"].items():
        for name, value in state.items():
            assert torch.equal(trainer._optimizer.state_dict()["state"][index][name], value)


@pytest.mark.parametrize(
    "options",
    [{"correction": "icepop"}, {"correction": "sequence_mask"}, {"ratio": "proximal"}, {"off_policy_mask": 0.1}],
)
def test_tokens_that_the_mismatch_leaves_out_are_counted(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup], options: dict[str, Any]
) -> None:
    trainer = Trainer(base_model, lora, OPTIONS.model_copy(update=options))
    masked = trainer.step(groups).metrics["masked_fraction"]
    assert 0 <= masked < 1
    assert (masked > 0) == ("ratio" not in options)


def test_a_first_reward_of_an_agent_is_where_its_running_mean_begins(base_model: str, lora: LoraOptions) -> None:
    trainer = Trainer(base_model, lora, OPTIONS.model_copy(update={"advantage": "ema"}))
    assert not trainer.step([group(member("a", 1.0))]).learned
    result = trainer.step([group(member("b", 0.0))])
    assert result.learned
    assert result.outcomes[0].advantage == -1.0


def test_what_controllers_know_is_in_the_version(
    base_model: str, lora: LoraOptions, groups: list[ClaimedGroup], tmp_path: Path
) -> None:
    options = OPTIONS.model_copy(
        update={"advantage": "ema", "entropy_target": 0.9, "entropy_coefficient": 0.02, "entropy_warmup": 1}
    )
    trainer = Trainer(base_model, lora, options)
    trainer.step(groups)
    trainer.save(tmp_path / "1")
    resumed = Trainer(base_model, lora, options, resume=tmp_path / "1")
    results = [t.step(groups) for t in (trainer, resumed)]
    assert results[0].outcomes == results[1].outcomes
    assert results[0].metrics["entropy_coefficient"] == 0.02
    assert same(adapter_weights(trainer), adapter_weights(resumed))
    later = [t.step(groups).metrics["entropy_coefficient"] for t in (trainer, resumed)]
    assert later[0] == later[1] != 0.02


def test_every_member_has_one_outcome_and_metrics_are_counted(base_model: str, lora: LoraOptions) -> None:
    trainer = Trainer(base_model, lora, OPTIONS)
    result = trainer.step(
        [
            group(
                member("a", 1.0, (completion(), completion())),
                member("b", 0.0),
                member("f", 1.0, status="error"),
            ),
            group(member("c", 1.0), member("d", 1.0)),
        ]
    )
    assert {outcome.trajectory_id: (outcome.tokens, outcome.reason) for outcome in result.outcomes} == {
        "a": (4, None),
        "b": (2, None),
        "f": (0, Reason.FAILED),
        "c": (0, Reason.ZERO_VARIANCE),
        "d": (0, Reason.ZERO_VARIANCE),
    }
    assert len(result.outcomes) == 5
    assert result.learned
    assert result.why == ""
    assert trainer.version == 1
    counted = {"groups": 2, "trajectories": 2, "calls": 3, "tokens": 6, "reward_mean": 0.75}
    assert {name: result.metrics[name] for name in counted} == counted
    assert result.metrics["zero_variance_groups"] == 0.5


def test_nothing_to_learn_from_changes_nothing_and_says_why(base_model: str, lora: LoraOptions) -> None:
    trainer = Trainer(base_model, lora, OPTIONS)
    before = adapter_weights(trainer)
    result = trainer.step(
        [group(member("a", 0.0), member("b", 0.0)), group(member("c", 1.0, ()), member("d", 0.0, ()))]
    )
    assert not result.learned
    assert trainer.version == 0
    assert same(before, adapter_weights(trainer))
    assert result.why == (
        "nothing to learn from: 1 of 2 groups zero_variance (all rewards 0.0), 2 trajectories no_tokens"
    )
    assert len(result.outcomes) == 4


def test_no_groups_say_so(base_model: str, lora: LoraOptions) -> None:
    assert "no trajectory was claimed" in Trainer(base_model, lora, OPTIONS).step([]).why


def _loss_that_breaks_call_zero(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    outputs = LOSSES["dapo"].per_token(inputs, options)
    return replace(outputs, losses=torch.where(inputs.calls == 0, torch.nan, outputs.losses))


def _gradient_that_breaks(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    outputs = LOSSES["dapo"].per_token(inputs, options)
    return replace(outputs, losses=outputs.losses + (inputs.logprobs - inputs.logprobs.detach()).sqrt())


@pytest.mark.parametrize("per_token", [_loss_that_breaks_call_zero, _gradient_that_breaks])
def test_a_loss_or_gradient_that_is_not_finite_names_the_trajectory_and_changes_nothing(
    base_model: str, lora: LoraOptions, monkeypatch: pytest.MonkeyPatch, per_token: Any
) -> None:
    monkeypatch.setattr(step_module, "LOSSES", {"broken": replace(LOSSES["dapo"], per_token=per_token)})
    trainer = Trainer(base_model, lora, OPTIONS.model_copy(update={"loss": "broken", "micro_batch_tokens": 5}))
    before = adapter_weights(trainer)
    with pytest.raises(TrainingError, match=r"trajector(y|ies) aaa"):
        trainer.step([group(member("aaa", 1.0, (completion(tokens=[1] * 9),)), member("bbb", 0.0))])
    assert trainer.version == 0
    assert same(before, adapter_weights(trainer))


def test_the_options_name_the_algorithms_that_there_are() -> None:
    for name, registry in (("loss", LOSSES), ("advantage", ADVANTAGES)):
        assert set(get_args(TrainingOptions.model_fields[name].annotation)) == set(registry)
        with pytest.raises(ValidationError, match=f"{name}\n.*{next(iter(registry))}"):
            TrainingOptions(**{name: "ppo2"})


def test_steps_make_rewarded_tokens_likelier(base_model: str, lora: LoraOptions) -> None:
    trainer = Trainer(base_model, lora, OPTIONS)
    learned = []
    for _ in range(8):
        groups = [
            group(
                *(
                    member(f"{token}", float(token == 7), (completion(tokens=[token], version=trainer.version),))
                    for token in (7, 8, 9, 10)
                )
            )
        ]
        (on_policy,) = _resampled(trainer, groups)
        learned.append(on_policy.members[0].completions[0].logprobs[0])
        trainer.step([on_policy])
    assert trainer.version == 8
    assert learned[-1] > learned[0] + 1.0


@pytest.mark.parametrize(("prompt", "sampled"), [(5, 4), (1, 5), (300, 200), (2, 1), (1, 300)])
def test_what_is_probed_leaves_the_engine_room_for_the_token_that_it_samples(prompt: int, sampled: int) -> None:
    ids = tuple(range(sampled))
    cut = step_module._cut(Call("x", tuple(range(prompt)), ids, tuple(-0.5 for _ in ids), 1.0, 0))
    assert len(cut.prompt_ids) >= 1
    assert cut.token_ids == ids[: len(cut.token_ids)] != ()
    assert len(cut.prompt_ids) + len(cut.token_ids) < prompt + sampled
    assert len(cut.logprobs) == len(cut.token_ids)
