"""What can be chosen about training. Every field has a bound; an unknown field is an error.

This module never imports torch, so that a backend can check its options before it starts a worker.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, field_validator, model_validator

LoraRank = Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]


class LoraOptions(BaseModel):
    """The adapter's shape. Dropout is always 0: with dropout the trainer's ratio would never be 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: LoraRank = 16
    """Rank of the update matrices: one of those that vLLM can serve."""

    alpha: int | None = Field(default=None, ge=1, le=4096)
    """The update is scaled by alpha / rank. None means 2 · rank, a scale of 2 whatever the rank."""

    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """The layers that get an adapter, by their last name (`q_proj`). `all-linear` is every linear layer
    but the output head; of a model with routed experts the attention's only, and never `kv_b_proj`. The head and
    the embeddings are refused. All this is what vLLM can serve."""

    @field_validator("target_modules")
    @classmethod
    def _servable(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        refused = {"lm_head", "embed_tokens", "embed_out", "wte", "wpe"}.intersection(value)
        if not value or (isinstance(value, tuple) and refused):
            raise ValueError(
                f"target_modules={value!r}: name at least one linear layer, and neither the output head nor embeddings"
            )
        return value

    @property
    def lora_alpha(self) -> int:
        """`alpha` with its default filled in."""
        return 2 * self.rank if self.alpha is None else self.alpha


class TrainingOptions(BaseModel):
    """One step's recipe. Tokens are counted per call: prompt and sampled tokens together."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    loss: Literal["dapo", "grpo", "dr_grpo", "gspo", "cispo", "sapo", "reinforce"] = "dapo"
    """Name in `art_sdk.training.losses.LOSSES`."""

    advantage: Literal["group", "leave_one_out", "batch", "ema", "turn", "gigpo", "plan_act"] = "group"
    """Name in `art_sdk.training.advantages.ADVANTAGES`."""

    scale_by_std: bool = False
    """Divide advantages by the standard deviation of what they are compared with. Off by default: it gives the
    groups that are nearly always right or nearly always wrong the largest weight."""

    discount: float = Field(default=0.95, gt=0, le=1)
    """γ of the returns that `turn` and `gigpo` give to calls."""

    step_weight: float = Field(default=1.0, ge=0, le=100)
    """ω: what `gigpo`'s comparison of single calls counts beside that of whole trajectories."""

    ema_decay: float = Field(default=0.95, ge=0, lt=1)
    """How much of its running mean `ema` keeps with each trajectory."""

    learning_rate: float = Field(default=1e-4, gt=0, le=1)
    """AdamW's constant learning rate. Adapters take about ten times that of full fine-tuning."""

    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The ratio is clipped at 1 - clip_low from below."""

    clip_high: float = Field(default=0.28, ge=0, le=10)
    """The ratio is clipped at 1 + clip_high from above."""

    dual_clip: float | None = Field(default=None, gt=1, le=100)
    """A token with a negative advantage loses its gradient where its ratio is above this. 3 is usual."""

    sapo_temperatures: tuple[PositiveFloat, PositiveFloat] = (1.0, 1.05)
    """How steep `sapo`'s gate is for positive and for negative advantages."""

    constant_length: int = Field(default=1024, ge=1, le=16_777_216)
    """What `dr_grpo` divides each trajectory by: about as many tokens as one may sample."""

    ratio: Literal["sampler", "proximal"] = "sampler"
    """What the ratio is taken against: the probabilities of the sampler, or those of the policy as the step began.
    `proximal` is the decoupled objective for stale data: the clip keeps the step small, `correction` alone makes up
    for the sampler. It clips only where a step has more than one of `updates`."""

    updates: int = Field(default=1, ge=1, le=16)
    """Optimizer updates of one step, each over all of its tokens."""

    correction: Literal["truncate", "icepop", "sequence_mask", "none"] = "truncate"
    """How a token counts that the sampler gave another probability than the policy does: see `training/mismatch.py`."""

    max_importance_weight: float = Field(default=2.0, ge=1, le=100)
    """`truncate`: the weight of a token that the policy finds likelier than the sampler did is cut at this."""

    icepop_range: tuple[NonNegativeFloat, PositiveFloat] = (0.5, 5.0)
    """`icepop`: a token whose weight is outside is not learned from."""

    max_sequence_weight: float = Field(default=3.0, ge=1, le=1e6)
    """`sequence_mask`: a call whose tokens' weights multiply to more is not learned from. Grows with length."""

    off_policy_mask: float | None = Field(default=None, gt=0, le=100)
    """In nats: a call with a negative advantage whose tokens the sampler found likelier by more than this on average
    is not learned from."""

    kl_coefficient: float = Field(default=0.0, ge=0, le=10)
    """β: what the distance to the reference costs. Above 0 a step computes every token once more."""

    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """`k2` and `k3` are added to the loss, `k1` is taken from the advantages."""

    kl_reference: str = "base"
    """`base`, or the folder of a version of this policy."""

    entropy_coefficient: float = Field(default=0.0, ge=0, le=1)
    """What a nat of the policy's entropy is worth in the loss: at first, where `entropy_target` is set."""

    entropy_target: float | None = Field(default=None, gt=0, le=2)
    """Steers the coefficient so that this share of the entropy of the first steps is kept."""

    entropy_warmup: int = Field(default=3, ge=1, le=1000)
    """Steps over which the entropy at the start is measured."""

    entropy_gain: float = Field(default=0.01, gt=0, le=1)
    """How much the coefficient changes in a step, for each unit by which the share is off."""

    max_entropy_coefficient: float = Field(default=0.05, gt=0, le=1)
    """Where steering ends."""

    max_grad_norm: float = Field(default=1.0, gt=0, le=1000)
    """The gradient of the whole step is scaled down to this norm."""

    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """AdamW's decoupled weight decay on the adapter's weights."""

    max_tokens_per_call: int = Field(default=4096, ge=2, le=1_048_576)
    """A trajectory with a longer call is left out as `too_long`."""

    max_staleness: int = Field(default=4, ge=0, le=1000)
    """In versions: a trajectory whose oldest token is older is left out as `too_stale`."""

    drop_truncated: bool = False
    """Leave out trajectories of which a call ended for want of room, as `truncated`."""

    micro_batch_tokens: int = Field(default=1024, ge=1, le=16_777_216)
    """Tokens in one forward and backward pass: those of shared prefixes once, or with padding, as
    `layout` says. Bounds memory, changes no result. A call that is longer goes alone. A model of 135M
    parameters holds about 3.5 MB of activations for each; on a CPU more than 500 are no faster."""

    checkpointing: bool = False
    """Keep only what enters each layer, and compute the rest again in the backward pass: about a quarter slower, for a
    fraction of the memory. Changes no result."""

    layout: Literal["auto", "forest", "padded"] = "auto"
    """`forest` computes what calls have in common once; `padded` computes every call by itself. They
    give the same result. `auto` is `forest` for models that can take it, else `padded`, and the log
    says why; `forest` refuses such a model."""

    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    """Seeds the adapter's first weights."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.icepop_range
        if low >= 1 or high <= 1:
            raise ValueError(f"icepop_range={self.icepop_range}: 1 must lie inside, or every token is left out")
        if self.entropy_coefficient > self.max_entropy_coefficient:
            raise ValueError(
                f"entropy_coefficient={self.entropy_coefficient} is above max_entropy_coefficient="
                f"{self.max_entropy_coefficient}: raise the latter"
            )
        return self
