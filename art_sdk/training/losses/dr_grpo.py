"""Dr. GRPO: the clipped surrogate, divided by a constant length.

"Understanding R1-Zero-Like Training" (arXiv 2503.20783), section 3.2: neither a trajectory's length nor the step's
weighs in, which takes GRPO's length bias away. Meant with advantages that aren't divided by the standard deviation.
"""

from .clip import clip_each_token
from .tensors import Loss

dr_grpo = Loss(clip_each_token, normalised_by="constant", ratio="unbounded")
