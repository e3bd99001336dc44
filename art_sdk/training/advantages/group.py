"""The reward against the mean of its group.

A_i = R_i - mean(R), or with `scale_by_std` (R_i - mean(R)) / (std(R) + 1e-4), std being the sample
standard deviation: GRPO, "DeepSeekMath" (arXiv 2402.03300), section 4.1.2, with the epsilon that TRL
and verl add. The undivided form is the default: Dr. GRPO, "Understanding R1-Zero-Like Training"
(arXiv 2503.20783), section 3.1, shows the bias that the division brings.
"""

from .estimate import by_rewards, centred

group = by_rewards(centred)
