"""GRPO: the clipped surrogate, every trajectory with the same weight.

"DeepSeekMath" (arXiv 2402.03300), equation 3: the mean over each trajectory's tokens, then over the trajectories. A
token of a long trajectory counts for less, and so mistakes at length are punished less: see `dapo` and `dr_grpo`.
"""

from .clip import clip_each_token
from .tensors import Loss

grpo = Loss(clip_each_token, normalised_by="trajectories", ratio="unbounded")
