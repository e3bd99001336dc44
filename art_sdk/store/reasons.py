"""Why a trajectory was not trained on. One enum, so that nothing is left out without a word."""

from enum import StrEnum


class Reason(StrEnum):
    """Stored with the trajectory and shown by `art traces` and, with its meaning, by `art explain`."""

    NO_REWARD = "no_reward"
    NO_TOKENS = "no_tokens"
    ZERO_VARIANCE = "zero_variance"
    TOO_STALE = "too_stale"
    TOO_LONG = "too_long"
    TRUNCATED = "truncated"
    FAILED = "failed"
    MASKED = "masked"
    UNSUPPORTED_SAMPLING = "unsupported_sampling"
    NOT_FINITE = "not_finite"
    EVALUATION = "evaluation"
    EXCLUDED = "excluded"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Reason.NO_REWARD: "it finished without a reward",
    Reason.NO_TOKENS: "no completion of this policy was stored: its calls did not go through the gateway",
    Reason.ZERO_VARIANCE: "every trajectory of its group has the same reward, so none is better than another",
    Reason.TOO_STALE: "its tokens were sampled too many versions ago",
    Reason.TOO_LONG: "a call has more tokens than the trainer takes",
    Reason.TRUNCATED: "a call was cut off for want of room, and the options leave such runs out",
    Reason.FAILED: "the agent raised, was cancelled or died: a failed run is not a bad run",
    Reason.MASKED: "every call of it has masked content: what a secret stood in is not learned from",
    Reason.UNSUPPORTED_SAMPLING: "sampled with top_p, top_k, penalties or temperature 0: the trainer can't reproduce "
    "the distribution",
    Reason.NOT_FINITE: "its step's loss or gradient was infinite or not a number, and was thrown away",
    Reason.EVALUATION: "it was run to measure, with train=False",
    Reason.EXCLUDED: "somebody excluded it from training",
}
