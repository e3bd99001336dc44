"""What the prefix forest saves: one training step of the same calls, laid out as a forest and as padded rows.

The step has the shape of the order desk's: 4 tickets, 8 runs of each, two calls in a run. Prints a table and,
last, one JSON line. `make bench NAME=forest`, about three minutes on two cores.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from importlib.metadata import version

from art_sdk.capture.records import Completion
from art_sdk.store.batch import ClaimedGroup, Member
from art_sdk.training.options import LoraOptions, TrainingOptions
from art_sdk.training.step import Trainer
from examples.tiny_model import tiny_model

VOCABULARY = 49_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="steps of each layout after one to warm up")
    repeats = parser.parse_args().repeats
    groups = make_groups()
    found = {layout: measure(layout, groups, repeats) for layout in ("forest", "padded")}

    print(f"{'layout':8} {'seconds':>8} {'CPU s':>8} {'loss':>12} {'grad norm':>12}")
    for layout, row in found.items():
        print(f"{layout:8} {row['seconds']:8.2f} {row['cpu']:8.2f} {row['loss']:12.8f} {row['grad_norm']:12.8f}")
    forest, padded = found["forest"], found["padded"]
    result = {
        "speedup": round(padded["seconds"] / forest["seconds"], 2),
        "cpu_ratio": round(padded["cpu"] / forest["cpu"], 2),
        "unique_tokens": int(forest["unique_tokens"]),
        "dense_tokens": int(forest["dense_tokens"]),
        "loss_rel_difference": abs(forest["loss"] - padded["loss"]) / abs(padded["loss"]),
        "grad_norm_rel_difference": abs(forest["grad_norm"] - padded["grad_norm"]) / padded["grad_norm"],
        "repeats": repeats,
        "model": tiny_model().name,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("torch", "transformers", "peft")},
    }
    print(json.dumps(result))


def measure(layout: str, groups: list[ClaimedGroup], repeats: int) -> dict[str, float]:
    """Medians over the repeats; loss and gradient norm are the first step's, from the same weights for each layout."""
    options = TrainingOptions(layout=layout, learning_rate=1e-6)
    trainer = Trainer(str(tiny_model()), LoraOptions(rank=8), options)
    first = trainer.step(groups).metrics
    seconds, cpu = [], []
    for repeat in range(repeats):
        started, cpu_started = time.perf_counter(), time.process_time()
        trainer.step(groups)
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - cpu_started)
        print(f"{layout}: step {repeat + 1} of {repeats}, {seconds[-1]:.1f} s", file=sys.stderr)
    return {**first, "seconds": statistics.median(seconds), "cpu": statistics.median(cpu)}


def make_groups() -> list[ClaimedGroup]:
    """4 groups of 8: a call with 60 tokens common to all, 40 of its ticket and 12 sampled; one with 45, 20 and 10."""
    draw = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(100, VOCABULARY) for _ in range(count)]

    read, reply = tokens(60), tokens(45)
    groups = []
    for group in range(4):
        ticket = tokens(40)
        members = []
        for run in range(8):
            identity = f"{group}-{run}"
            calls = (
                completion(identity, 0, [*read, *ticket], tokens(12)),
                completion(identity, 1, [*reply, *tokens(20)], tokens(10)),
            )
            members.append(Member(identity, "handle", "finished", float(run % 2), False, calls))
        groups.append(ClaimedGroup(str(group), "policy", tuple(members)))
    return groups


def completion(
    trajectory_id: str, call: int, prompt_ids: list[int], token_ids: list[int], logprobs: list[float] | None = None
) -> Completion:
    return Completion(
        response_id=f"{trajectory_id}-{call}",
        choice=0,
        policy="policy",
        version=0,
        prompt_ids=prompt_ids,
        token_ids=token_ids,
        logprobs=logprobs or [-10.0] * len(token_ids),
        sampling={},
        finish_reason="stop",
        created_at=call,
        trajectory_id=trajectory_id,
    )


if __name__ == "__main__":
    main()
