"""Entropy control: a bonus that is steered, so that the policy keeps a share of the entropy that it began with.

    loss      - c · mean_t H_t
    c       ← clamp(c + g · (f - H/H_0), 0, c_max)      after each step

H is the step's mean entropy, H_0 its mean over the first steps, f the target as a share of it: a controller of the
kind in Skywork-OR1 (arXiv 2505.22312, section 3.2.4), with a relative target, because the entropy that a policy
starts with depends on its task and model. While H_0 is measured, c stays as it is. The state goes into checkpoints.
"""

from collections.abc import Mapping

from .options import TrainingOptions


def coefficient(memory: Mapping[str, float], options: TrainingOptions) -> float:
    """c, for the next step."""
    return memory.get("entropy_coefficient", options.entropy_coefficient)


def steered(memory: Mapping[str, float], entropy: float, options: TrainingOptions) -> dict[str, float]:
    """`memory` after a step of mean entropy `entropy`, in nats."""
    seen, initial = memory.get("entropy_steps", 0.0), memory.get("entropy_initial", 0.0)
    if options.entropy_target is None:
        return dict(memory) | {"entropy_coefficient": options.entropy_coefficient}
    current = coefficient(memory, options)
    if seen < options.entropy_warmup:
        initial, seen = (initial * seen + entropy) / (seen + 1), seen + 1
    elif initial > 0:
        error = options.entropy_target - entropy / initial
        current = min(max(current + options.entropy_gain * error, 0.0), options.max_entropy_coefficient)
    return dict(memory) | {
        "entropy_steps": seen,
        "entropy_initial": initial,
        "entropy_coefficient": current,
    }
