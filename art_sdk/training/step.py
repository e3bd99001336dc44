"""GRPO and its kin on a LoRA adapter: one call of `Trainer.step` is one step, and one new version.

By default: group-relative advantages; the ratio is taken against the log-probabilities of the sampler
itself, so a stale or differently rounded sampler is corrected for; one pass over the data, one
update; no KL term (the adapter starts at the base and moves little). What was left out, and why: no
value network (the group is the baseline), no learning rate schedule (a policy that serves has no last
step).

A step learns or changes nothing: weights, moments and version are untouched when it raises, and when
there is nothing to learn from.
"""

import copy
import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from torch import Tensor

from ..errors import TrainingError
from ..store.batch import ClaimedGroup, Outcome
from ..store.reasons import Reason
from . import entropy
from .advantages import ADVANTAGES, Estimate
from .batch import MicroBatch, padded_batches, token_logprobs, token_scores
from .checkpoints import ProbeSequence, TrainerState, read_state, restore, save_version
from .forest import forest_batches, obstacle, unique_tokens
from .kl import with_weights
from .losses import LOSSES
from .losses.tensors import clamped
from .model import adapter_weights, load_policy
from .objective import Objective, Scores, Terms, joined
from .options import LoraOptions, TrainingOptions
from .tokens import Call, Candidate, select

_logger = logging.getLogger("art_sdk.training")

_PROBE_SEQUENCES = 4
_PROBE_TOKENS = 512

_Layout = Callable[[Sequence[Call], int, torch.device], Iterator[MicroBatch]]


@dataclass(frozen=True)
class StepResult:
    """What a step did. `outcomes` has one entry for every member of every group.

    `metrics`, always: `seconds`; `groups`, the number claimed; `zero_variance_groups`, the share of
    them with equal rewards; `reward_mean` and `reward_std` over all finished members with a reward (0
    without one); `trajectories`, `calls` and `tokens` trained on; `dense_tokens`, prompts and sampled
    tokens of those calls; `unique_tokens`, what remains of them when a shared prefix counts once.
    When it learned also: `loss`; `grad_norm` before clipping; `ratio_mean`, `ratio_max`;
    `mismatch_abs`, mean |log π - log μ|; `mismatch_kl`, mean r - 1 - log r, which estimates KL(μ‖π);
    `clip_fraction`; `masked_fraction`, tokens left out for the sampler's mismatch; `entropy`, the mean
    of the policy's, in nats, and `entropy_coefficient`; `kl`, mean log π - log π_ref (0 without a
    reference); `staleness_mean`, versions between sampling and training, mean over calls. They are
    those of the step's first update; r is π/μ.
    """

    learned: bool
    why: str
    """Why nothing was learned, in one sentence; empty when something was."""
    outcomes: tuple[Outcome, ...]
    metrics: dict[str, float]


class Trainer:
    """Holds the policy's weights and optimizer between steps."""

    def __init__(
        self,
        base_model: str,
        lora: LoraOptions,
        options: TrainingOptions,
        resume: Path | None = None,
        given: int = 0,
    ) -> None:
        """`resume` is the directory of a saved version: training goes on exactly where it stopped. `given` is the
        last number that a version was given: there may be later ones than that, which were rejected.

        Raises `ConfigError` for an unknown loss or advantage, `TrainingError` for what can't be loaded
        and for a model that can't take the layout that the options insist on.
        """
        self._loss = LOSSES[options.loss]
        self._advantage = ADVANTAGES[options.advantage]
        self.base_model = base_model
        self.lora = lora
        self.options = options
        saved = None if resume is None else self._check_resumable(resume)
        self.version = saved.version if saved else 0
        self._memory: dict[str, float] = saved.memory if saved else {}
        self._given = given
        self.model: PeftModel = load_policy(
            base_model, lora, resume, seed=options.seed, checkpointing=options.checkpointing
        )
        self._batches = self._choose_layout()
        self._parameters = [weight for weight in self.model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=options.learning_rate, weight_decay=options.weight_decay
        )
        if resume is not None:
            restore(resume, self._optimizer)
        self._reference = self._load_reference()
        self._learned_from: tuple[Call, ...] = ()
        self._groups: tuple[str, ...] = ()

    def step(self, groups: Sequence[ClaimedGroup]) -> StepResult:
        """One step from `groups`. `version` becomes the next number if something was learned.

        Raises `TrainingError`, naming the trajectories, for a loss or gradient that is not finite.
        """
        started = time.perf_counter()
        selection = select(groups, current_version=self.version, options=self.options)
        estimate = self._advantage(selection.groups, self.options, _part(self._memory, "advantage"))
        memory = self._memory | _named("advantage", estimate.memory)
        differing = [group for group in selection.groups if _differs(group, estimate)]
        flat = [c for group in selection.groups if not _differs(group, estimate) for c in group]
        left_out = (
            *selection.left_out,
            *(Outcome(candidate.trajectory_id, tokens=0, reason=Reason.ZERO_VARIANCE) for candidate in flat),
        )
        if not differing:
            self._memory = memory  # no version holds it; but a baseline begins with what could not be compared
            why = _why_nothing(groups, left_out)
            return nothing_learned(groups, left_out, why, time.perf_counter() - started)

        candidates = [candidate for group in differing for candidate in group]
        calls = tuple(
            replace(call, advantage=advantage)
            for candidate in candidates
            for call, advantage in zip(candidate.calls, estimate.advantages[candidate.trajectory_id], strict=True)
        )
        coefficient = entropy.coefficient(_part(memory, "entropy"), self.options)
        objective = Objective(calls, self._loss, self.options, coefficient)
        with self._all_or_nothing():
            first, grad_norm = self._update(calls, objective)
            for _ in range(self.options.updates - 1):
                self._update(calls, objective, first)

        seen = joined([terms for terms, _ in first])
        metrics = claim_metrics(groups, left_out) | _token_metrics(seen)
        metrics |= {
            "grad_norm": grad_norm,
            "entropy_coefficient": coefficient,
            "trajectories": len(candidates),
            "calls": len(calls),
            "tokens": objective.tokens,
            "dense_tokens": sum(len(call.prompt_ids) + len(call.token_ids) for call in calls),
            "unique_tokens": unique_tokens(calls),
            "staleness_mean": statistics.fmean(self.version - call.version for call in calls),
        }
        outcomes = tuple(
            Outcome(
                candidate.trajectory_id,
                tokens=sum(len(call.token_ids) for call in candidate.calls),
                advantage=statistics.fmean(estimate.advantages[candidate.trajectory_id]),
            )
            for candidate in candidates
        )
        steered = entropy.steered(_part(memory, "entropy"), metrics["entropy"], self.options)
        self._memory = memory | _named("entropy", steered)
        self.version = self._given = max(self.version, self._given) + 1
        self._learned_from = calls
        self._groups = tuple(group.group_id for group in groups)
        metrics["seconds"] = time.perf_counter() - started
        return StepResult(True, "", outcomes + left_out, metrics)

    def _update(
        self, calls: Sequence[Call], objective: Objective, first: Sequence[tuple[Terms, Scores]] | None = None
    ) -> tuple[list[tuple[Terms, Scores]], float]:
        """One pass over the calls and one optimizer update. `first` is what the step's first pass gave.

        Returns what each micro-batch gave, detached, and the norm of the gradient before clipping.
        """
        bonus = self.options.entropy_coefficient > 0 or self.options.entropy_target is not None
        self._optimizer.zero_grad()
        done: list[tuple[Terms, Scores]] = []
        for number, batch in enumerate(self._batches(calls, self.options.micro_batch_tokens, self.model.device)):
            began = first[number][1] if first else None
            logprobs_T, entropies_T = token_scores(self.model, batch, entropy="trained" if bonus else "measured")
            scores = Scores(
                logprobs_T,
                entropies_T,
                old_logprobs=began.logprobs if began else logprobs_T.detach(),
                reference_logprobs=began.reference_logprobs if began else self._reference_logprobs(batch),
            )
            terms = objective.terms(batch, scores)
            _check_losses(terms.losses, batch)
            torch.autograd.backward(terms.losses.sum())
            self._check_gradients(batch)
            detached = replace(scores, logprobs=logprobs_T.detach(), entropies=entropies_T.detach())
            done.append((terms.detached(), detached))
        grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.options.max_grad_norm)
        self._optimizer.step()
        return done, float(grad_norm)

    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        if self.options.kl_coefficient == 0:
            return None
        with torch.no_grad(), self._as_reference():
            return token_logprobs(self.model, batch)

    def _as_reference(self) -> AbstractContextManager[None]:
        """Inside, the model is the one that the KL is measured to."""
        if self._reference is None:
            return cast(AbstractContextManager[None], self.model.disable_adapter())
        return with_weights(self._parameters, self._reference)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Where a later update of the step fails, the earlier ones are taken back too."""
        several = self.options.updates > 1
        weights = [weight.detach().clone() for weight in self._parameters] if several else []
        moments = copy.deepcopy(self._optimizer.state_dict()) if several else None
        try:
            yield
        except TrainingError:
            if moments is not None:
                with torch.no_grad():
                    for weight, before in zip(self._parameters, weights, strict=True):
                        weight.copy_(before)
                self._optimizer.load_state_dict(moments)
            raise

    def save(self, directory: Path) -> None:
        """Write the version that the last step made. Raises `TrainingError` if `directory` exists, or
        if no step has learned since this trainer was made."""
        if not self._learned_from:
            raise TrainingError(f"there is no new version to save: nothing was learned since {self.version}.")
        save_version(
            directory,
            model=self.model,
            optimizer=self._optimizer,
            state=TrainerState(
                version=self.version,
                base_model=self.base_model,
                lora=self.lora,
                options=self.options,
                memory=self._memory,
                groups=self._groups,
            ),
            probe=self._probe(),
        )

    def _probe(self) -> list[ProbeSequence]:
        """Distinct sequences spread over the step's calls, cut to fit, under the adapter and without it."""
        distinct = {(call.prompt_ids, call.token_ids): call for call in self._learned_from}
        calls = list(distinct.values())
        spread = calls[:: math.ceil(len(calls) / _PROBE_SEQUENCES)]
        batches = list(padded_batches([_cut(call) for call in spread], _PROBE_TOKENS, self.model.device))
        with torch.no_grad():
            adapted = [token_logprobs(self.model, batch) for batch in batches]
            with self.model.disable_adapter():
                base = [token_logprobs(self.model, batch) for batch in batches]
        if not torch.cat(adapted).isfinite().all():
            raise TrainingError(
                f"version {self.version} gives log-probabilities that are not finite: it was not saved. "
                "Lower learning_rate and resume from the version before."
            )
        return [
            ProbeSequence(
                call.prompt_ids,
                call.token_ids,
                tuple(adapted_T[batch.calls_T == row].tolist()),
                tuple(base_T[batch.calls_T == row].tolist()),
            )
            for batch, adapted_T, base_T in zip(batches, adapted, base, strict=True)
            for row, call in enumerate(batch.calls)
        ]

    def _choose_layout(self) -> _Layout:
        if self.options.layout == "padded":
            return padded_batches
        reason = obstacle(self.model)
        if reason is None:
            return forest_batches
        if self.options.layout == "forest":
            raise TrainingError(
                f"base model {self.base_model!r} can't be trained with layout='forest': {reason}. Use layout='auto'."
            )
        _logger.warning(
            "base model %r is trained with layout 'padded', which computes shared prefixes again for every call: %s",
            self.base_model,
            reason,
        )
        return padded_batches

    def _load_reference(self) -> list[Tensor] | None:
        """The weights of the version that the KL is measured to; None for the base model."""
        if self.options.kl_coefficient == 0 or self.options.kl_reference == "base":
            return None
        folder = Path(self.options.kl_reference)
        self._check_resumable(folder)
        return adapter_weights(self.model, self.lora, folder)

    def _check_resumable(self, directory: Path) -> TrainerState:
        saved = read_state(directory)
        if (saved.base_model, saved.lora) != (self.base_model, self.lora):
            raise TrainingError(
                f"{directory} was trained on {saved.base_model!r} with {saved.lora!r}, not on "
                f"{self.base_model!r} with {self.lora!r}: use the former, or start from the base model."
            )
        return saved

    def _check_gradients(self, batch: MicroBatch) -> None:
        norm = torch.nn.utils.get_total_norm([w.grad for w in self._parameters if w.grad is not None])
        if not norm.isfinite():
            names = sorted({call.trajectory_id for call in batch.calls})
            raise TrainingError(
                f"a gradient of {float(norm)} from a micro-batch of trajectories {', '.join(names)}: "
                "nothing was changed. Leave them out, or lower micro_batch_tokens to find the one."
            )


def _differs(group: Sequence[Candidate], estimate: Estimate) -> bool:
    return any(any(estimate.advantages[candidate.trajectory_id]) for candidate in group)


def _part(memory: Mapping[str, float], name: str) -> dict[str, float]:
    """What `name` keeps in the trainer's memory."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in memory.items() if key.startswith(prefix)}


def _named(name: str, memory: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}/{key}": value for key, value in memory.items()}


def _check_losses(losses_T: Tensor, batch: MicroBatch) -> None:
    broken = (~losses_T.isfinite()).nonzero()
    if len(broken):
        token = int(broken[0])
        call = batch.calls[int(batch.calls_T[token])]
        raise TrainingError(
            f"a loss of {losses_T[token].item()} for trajectory {call.trajectory_id}, sampled by version "
            f"{call.version}: nothing was changed. Leave it out, or look at its log-probabilities."
        )


def _cut(call: Call) -> Call:
    """As much of a call as the probe scores: one token less than the call at most, for the engine samples one more."""
    limit = min(_PROBE_TOKENS, len(call.prompt_ids) + len(call.token_ids) - 1)
    token_ids = call.token_ids[: max(1, min(_PROBE_TOKENS // 2, limit - 1))]
    return replace(
        call,
        prompt_ids=call.prompt_ids[-max(1, limit - len(token_ids)) :],
        token_ids=token_ids,
        logprobs=call.logprobs[: len(token_ids)],
        temperature=1.0,
    )


def nothing_learned(
    groups: Sequence[ClaimedGroup], left_out: Sequence[Outcome], why: str, seconds: float
) -> StepResult:
    """The result of a step that trained on no token."""
    none = dict.fromkeys(("trajectories", "calls", "tokens", "dense_tokens", "unique_tokens"), 0)
    return StepResult(False, why, tuple(left_out), claim_metrics(groups, left_out) | none | {"seconds": seconds})


def claim_metrics(groups: Sequence[ClaimedGroup], left_out: Sequence[Outcome]) -> dict[str, float]:
    """What a claim says of itself, before any training: groups, the share without variance, rewards."""
    rewards = [
        member.reward
        for group in groups
        for member in group.members
        if member.status == "finished" and member.reward is not None and math.isfinite(member.reward)
    ]
    return {
        "groups": len(groups),
        "zero_variance_groups": len(_zero_variance(groups, left_out)) / len(groups) if groups else 0.0,
        "reward_mean": statistics.fmean(rewards) if rewards else 0.0,
        "reward_std": statistics.pstdev(rewards) if rewards else 0.0,
    }


def _token_metrics(terms: Terms) -> dict[str, float]:
    log_ratios_T = clamped(terms.log_ratios)
    ratios_T = log_ratios_T.exp()
    return {
        "loss": float(terms.losses.sum()),
        "ratio_mean": float(ratios_T.mean()),
        "ratio_max": float(ratios_T.max()),
        "mismatch_kl": float((ratios_T - 1 - log_ratios_T).mean()),
        "mismatch_abs": float(log_ratios_T.abs().mean()),
        "clip_fraction": float(terms.clipped.float().mean()),
        "masked_fraction": float((terms.weights == 0).float().mean()),
        "entropy": float(terms.entropies.mean()),
        "kl": float(terms.kl.mean()),
    }


def _zero_variance(groups: Sequence[ClaimedGroup], left_out: Sequence[Outcome]) -> list[set[float]]:
    """The rewards of each group that was left out because they are equal."""
    ids = {outcome.trajectory_id for outcome in left_out if outcome.reason is Reason.ZERO_VARIANCE}
    rewards = ({m.reward for m in group.members if m.trajectory_id in ids and m.reward is not None} for group in groups)
    return [values for values in rewards if values]


def _why_nothing(groups: Sequence[ClaimedGroup], left_out: Sequence[Outcome]) -> str:
    if not left_out:
        return "nothing to learn from: no trajectory was claimed"
    parts = []
    flat = _zero_variance(groups, left_out)
    if flat:
        values = set().union(*flat)
        detail = f"all rewards {values.pop()}" if len(values) == 1 else "rewards equal inside each group"
        parts.append(f"{len(flat)} of {len(groups)} groups zero_variance ({detail})")
    counts = Counter(outcome.reason for outcome in left_out if outcome.reason is not Reason.ZERO_VARIANCE)
    parts += [f"{count} trajectories {reason}" for reason, count in counts.most_common()]
    return f"nothing to learn from: {', '.join(parts)}"
