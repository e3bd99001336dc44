"""What can be chosen about training. Every field has a bound; an unknown field is an error.

This module never imports torch, so that a backend can check its options before it starts a worker.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

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
    but the output head; the head and the embeddings are refused, because vLLM can't serve them."""

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

    loss: Literal["dapo"] = "dapo"
    """Name in `art_sdk.training.losses.LOSSES`."""

    advantage: Literal["group"] = "group"
    """Name in `art_sdk.training.advantages.ADVANTAGES`."""

    scale_by_std: bool = False
    """Divide advantages by the standard deviation of their group. Off by default: it gives the
    groups that are nearly always right or nearly always wrong the largest weight."""

    learning_rate: float = Field(default=1e-4, gt=0, le=1)
    """AdamW's constant learning rate. Adapters take about ten times that of full fine-tuning."""

    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The ratio is clipped at 1 - clip_low from below."""

    clip_high: float = Field(default=0.28, ge=0, le=10)
    """The ratio is clipped at 1 + clip_high from above."""

    max_importance_weight: float = Field(default=2.0, ge=1, le=100)
    """The weight of a token that the trainer finds likelier than the sampler did is cut at this."""

    max_grad_norm: float = Field(default=1.0, gt=0, le=1000)
    """The gradient of the whole step is scaled down to this norm."""

    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """AdamW's decoupled weight decay on the adapter's weights."""

    max_tokens_per_call: int = Field(default=4096, ge=2, le=1_048_576)
    """A trajectory with a longer call is left out as `too_long`."""

    max_staleness: int = Field(default=4, ge=0, le=1000)
    """In versions: a trajectory whose oldest token is older is left out as `too_stale`."""

    micro_batch_tokens: int = Field(default=1024, ge=1, le=16_777_216)
    """Tokens in one forward and backward pass: those of shared prefixes once, or with padding, as
    `layout` says. Bounds memory, changes no result. A call that is longer goes alone. A model of 135M
    parameters holds about 3.5 MB of activations for each; on a CPU more than 500 are no faster."""

    layout: Literal["auto", "forest", "padded"] = "auto"
    """`forest` computes what calls have in common once; `padded` computes every call by itself. They
    give the same result. `auto` is `forest` for models that can take it, else `padded`, and the log
    says why; `forest` refuses such a model."""

    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    """Seeds the adapter's first weights."""
