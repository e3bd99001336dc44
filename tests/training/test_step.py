from dataclasses import replace
from typing import get_args

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
from art_sdk.training.losses import LOSSES, Loss, LossInputs, LossOutputs
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
                truncated = ratio * (2.0 / ratio).clamp(max=1.0).detach()
                total = total - torch.minimum(truncated * advantage, ratio.clamp(0.8, 1.28) * advantage).sum()
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


def _loss_that_breaks_row_zero(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    outputs = LOSSES["dapo"](inputs, options)
    return replace(outputs, losses=torch.where(inputs.rows == 0, torch.nan, outputs.losses))


def _gradient_that_breaks(inputs: LossInputs, options: TrainingOptions) -> LossOutputs:
    outputs = LOSSES["dapo"](inputs, options)
    return replace(outputs, losses=outputs.losses + (inputs.logprobs - inputs.logprobs.detach()).sqrt())


@pytest.mark.parametrize("loss", [_loss_that_breaks_row_zero, _gradient_that_breaks])
def test_a_loss_or_gradient_that_is_not_finite_names_the_trajectory_and_changes_nothing(
    base_model: str, lora: LoraOptions, monkeypatch: pytest.MonkeyPatch, loss: Loss
) -> None:
    monkeypatch.setattr(step_module, "LOSSES", {"broken": loss})
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
