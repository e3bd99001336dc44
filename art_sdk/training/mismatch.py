"""What to do about a sampler that isn't the policy being trained: stale, or rounded otherwise.

    ρ_t = π / μ        μ: the sampler; π: the policy as the step began, or as it is (where the ratio is against μ)

    truncate        weight min(ρ, C): IMPALA (arXiv 1802.01561); TRL's token_truncate
    icepop          weight ρ inside [low, high], else 0: "Every Step Evolves" (arXiv 2510.18855)
    sequence_mask   weight ρ, and 0 for a whole call where Π ρ > C; TRL's sequence_mask keeps Π ρ as the weight
    none            weight ρ

Where the loss already carries ρ in its ratio, the weight is without it: min(1, C/ρ), or 1, or 0; and where the loss
bounds its ratio, there is nothing left to truncate.

Beside them the off-policy sequence mask of DeepSeek-V3.2 (arXiv 2512.02556, section 3.1): a call with a negative
advantage whose tokens the sampler found likelier by more than δ nats on average is not learned from.
"""

import math

import torch
from torch import Tensor

from .losses.tensors import Ratio, clamped, mean_by_call
from .options import TrainingOptions


def weights(
    log_rho_T: Tensor,
    advantages_T: Tensor,
    calls_T: Tensor,
    options: TrainingOptions,
    ratio: Ratio,
) -> Tensor:
    """The weight of each token's loss, float32 [T], detached. `ratio`: how the loss itself has ρ, if it has."""
    raw_T = log_rho_T.detach()
    log_T = clamped(raw_T)
    rho_T = log_T.exp()
    weights_T = rho_T if ratio == "absent" else torch.ones_like(rho_T)
    if options.correction == "truncate" and ratio != "bounded":
        weights_T = weights_T * (options.max_importance_weight / rho_T).clamp(max=1.0)
    elif options.correction == "icepop":
        low, high = options.icepop_range
        weights_T = weights_T * ((rho_T >= low) & (rho_T <= high))
    elif options.correction == "sequence_mask":
        tokens_T = torch.bincount(calls_T)[calls_T]
        weights_T = weights_T * (mean_by_call(log_T, calls_T) * tokens_T <= math.log(options.max_sequence_weight))
    if options.off_policy_mask is not None:
        drifted_T = mean_by_call(-raw_T, calls_T) > options.off_policy_mask
        weights_T = weights_T * ~(drifted_T & (advantages_T < 0))
    return weights_T
