"""DAPO: the clipped surrogate, every token of the step with the same weight.

"DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (arXiv 2503.14476), equation 8: the sum over all
tokens of all trajectories is divided by their number, so that a long answer's tokens count as much as a short one's.
Its bounds are 0.2 and 0.28, and it has no KL term.
"""

from .clip import clip_each_token
from .tensors import Loss

dapo = Loss(clip_each_token, normalised_by="tokens", ratio="unbounded")
