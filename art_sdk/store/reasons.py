"""Why a trajectory was not trained on. One enum, so that nothing is left out without a word."""

from enum import StrEnum


class Reason(StrEnum):
    """Stored with the trajectory and shown by `art traces` and `art explain`."""

    NO_REWARD = "no_reward"
    """It finished without a reward."""
    NO_TOKENS = "no_tokens"
    """No completion of this policy was stored: its calls did not go through the gateway."""
    ZERO_VARIANCE = "zero_variance"
    """Every trajectory of its group has the same reward, so none is better than another."""
    TOO_STALE = "too_stale"
    """Its tokens were sampled too many versions ago."""
    TOO_LONG = "too_long"
    """A call has more tokens than the trainer takes."""
    FAILED = "failed"
    """The agent raised, was cancelled or died: a failed run is not a bad run."""
    MASKED = "masked"
    """Every call of it has masked content: what a secret stood in is not learned from."""
    UNSUPPORTED_SAMPLING = "unsupported_sampling"
    """Sampled with top_p, top_k, penalties or temperature 0: the trainer can't reproduce the distribution."""
    NOT_FINITE = "not_finite"
    """Its step's loss or gradient was infinite or not a number, and was thrown away."""
    EVALUATION = "evaluation"
    """It was run to measure, with `train=False`."""
