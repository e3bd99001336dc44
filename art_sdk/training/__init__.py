"""Groups of trajectories in, a new adapter version out: no server and no store needed.

    options.py      what can be chosen, with bounds
    tokens.py       which trajectories can be learned from, and why the others can't
    advantages/     rewards to one advantage per call
    batch.py        calls to padded rows, rows to log-probabilities of the sampled tokens
    forest.py       calls to rows in which what they share is computed once
    losses/         log-probabilities and advantages to a loss per token
    mismatch.py     what a token counts that the sampler gave another probability
    kl.py           the distance to a reference
    entropy.py      a bonus that keeps the policy from becoming certain
    objective.py    all of these together: what an update minimises
    model.py        base model and adapter
    step.py         the recipe: one optimizer update of a policy
    checkpoints.py  a version directory, written whole or not at all

Nothing is imported here, so that the options and the selection can be used without torch.
"""
