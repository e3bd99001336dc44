"""A training step beside TRL's `GRPOTrainer`: the same model, adapter, token ids and advantages, on the same machine.

Measured: trained tokens a second of whole steps and the memory that they take, for a single turn and for an agent
whose context grows with each call; our own padded layout beside the forest; what a step costs as the same tokens are
cut into more turns; and how far a step is from what the machine's matrix products allow. The gradients of the first
step are compared, so that the speeds are of the same mathematics. Time to a held-out reward is not measured here.

Generation is left out: the rollouts are given (`train_peers/rollouts.py`). TRL takes an agent's trajectory as one row
with tool tokens masked, or each call as a row; both are measured, and the faster counts. Its rows in a forward pass are
the fastest of those tried; ours are the defaults. It runs in a virtual environment of its own
(`capture_peers/environments.py`), each measurement in a process of its own, one after another. TRL's output head scores
every position where there is no Triton, prompts too: on a GPU that part of the difference would be gone.

Memory is compared in two ways, each like with like: as both are by default in this benchmark, with all activations
kept, and the least that each can do with, layers computed again in the backward pass and, for TRL, a row at a time.

Prints tables and, last, one JSON line. `make bench NAME=train`, two hours on two cores; `ARGS="--groups 1"` takes one
group of each shape in place of four, a quarter of the time with the same tokens a second; `ARGS=--quick` is for a look.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.capture_peers.environments import CannotInstall, interpreter
from benchmarks.train_peers.rollouts import Shape
from examples.tiny_model import tiny_model

TRL = "1.16.0"
TRL_PACKAGES = [f"trl=={TRL}", "datasets==5.2.0", "multiprocess==0.70.19", "pandas==3.1.1"]
"""TRL and what it alone needs."""

ROOT = Path(__file__).resolve().parent.parent
THREADS = os.cpu_count() or 1
FORMS = {"single turn": ("conversation",), "agent": ("conversation", "call")}
"""What a row of TRL's is. With one turn it is the same."""

SINGLE = Shape(groups=4, members=8, first_prompt=512, turns=1, answer=64, tool=0)
AGENT = Shape(groups=4, members=8, first_prompt=250, turns=6, answer=60, tool=170)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    repeats: int = 3
    """Steps that count, after one to warm up."""
    agent_repeats: int = 2
    single: Shape = SINGLE
    agent: Shape = AGENT
    members_by_call: int = 2
    """Of one group of the agent's, where each call is a row of its own: all of them take many minutes a step, nothing
    is shared, and so tokens a second are those of a few."""
    turns: tuple[Shape, ...] = tuple(
        Shape(groups=1, members=2, first_prompt=250, turns=turns, answer=480 // turns, tool=1200 // (turns - 1))
        for turns in (2, 4, 8, 16)
    )
    rows: tuple[int, ...] = (1, 2, 4, 8)
    """Of TRL's in a forward pass, to choose from."""
    matrix: int = 4096

    @classmethod
    def of(cls, groups: int, repeats: int) -> "Sizes":
        shapes = {"single": replace(SINGLE, groups=groups), "agent": replace(AGENT, groups=groups)}
        return cls(repeats=repeats, agent_repeats=max(1, repeats - 1), **shapes)

    @property
    def agent_by_call(self) -> Shape:
        return replace(self.agent, groups=1, members=self.members_by_call)


QUICK = Sizes(
    repeats=1,
    agent_repeats=0,
    single=Shape(groups=1, members=8, first_prompt=256, turns=1, answer=32, tool=0),
    agent=Shape(groups=1, members=2, first_prompt=100, turns=4, answer=30, tool=60),
    turns=tuple(
        Shape(groups=1, members=2, first_prompt=40, turns=turns, answer=48 // turns, tool=120 // (turns - 1))
        for turns in (2, 4)
    ),
    rows=(4,),
    matrix=2048,
)


@dataclass(frozen=True)
class Bench:
    """Runs one side's script in a process of its own and gives what it printed."""

    home: Path
    sizes: Sizes
    trl: Path

    def run(self, side: str, task: str, **given: Any) -> dict[str, Any]:
        print(f"{side}: {task} {given.get('layout') or given.get('form') or ''}", file=sys.stderr)
        python = str(self.trl) if side == "trl" else sys.executable
        module = f"benchmarks.train_peers.{'trl_side' if side == 'trl' else 'our_side'}"
        given |= {
            "task": task,
            "model": str(tiny_model()),
            "adapter": str(self.home / "adapter"),
            "threads": THREADS,
            "learning_rate": 1e-6,
            "max_grad_norm": 1000.0,  # scales no gradient here: they are compared after clipping
        }
        done = subprocess.run(
            [python, "-m", module, json.dumps(given)],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS)},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(f"{side}: {task} failed:\n{done.stderr}")
        print(
            "".join(line for line in done.stderr.splitlines(True) if line.startswith("TRL,")), end="", file=sys.stderr
        )
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found

    def gradients(self, name: str) -> str:
        return str(self.home / f"{name}.safetensors")

    def logprobs(self, name: str) -> str:
        return str(self.home / f"{name}.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small shapes: to see that it runs, not for figures")
    parser.add_argument("--groups", type=int, default=4, help="of each shape")
    parser.add_argument("--repeats", type=int, default=3, help="steps that count, after one to warm up")
    given = parser.parse_args()
    sizes = QUICK if given.quick else Sizes.of(given.groups, given.repeats)
    try:
        trl = interpreter("trl", TRL_PACKAGES)
    except CannotInstall as error:
        sys.exit(f"TRL can't be installed: {error}")
    with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
        bench = Bench(Path(folder), sizes, trl)
        result = measure(bench)
    result |= {
        "trl_version": TRL,
        "model": tiny_model().name,
        "machine": machine(),
        "threads": THREADS,
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "accelerate", "art-agent-sdk")},
        "sizes": asdict(sizes),
    }
    print(json.dumps(result))


def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    named = {"single turn": sizes.single, "agent": sizes.agent, "agent by call": sizes.agent_by_call}
    bench.run("ours", "prepare", shapes={bench.logprobs(name): asdict(shape) for name, shape in named.items()})
    forms = {"single turn": sizes.single} | dict.fromkeys(FORMS["agent"], sizes.agent)
    rows = dict.fromkeys(forms, sizes.rows[0])
    if len(sizes.rows) > 1:
        shapes = {form: asdict(shape) for form, shape in forms.items()}
        rows = bench.run("trl", "tune", forms=shapes, sizes=sizes.rows, members=sizes.single.members)
    single = measure_shape(bench, "single turn", {"conversation": rows["single turn"]})
    agent = measure_shape(bench, "agent", rows)
    turns = bench.run("ours", "turns", shapes=[asdict(shape) for shape in sizes.turns], repeats=1)
    limits = bench.run(
        "ours",
        "limits",
        shapes={"single turn": asdict(sizes.single), "agent": asdict(sizes.agent)},
        matrix=sizes.matrix,
        repeats=sizes.repeats,
    )
    print_turns(turns)
    print_limits(single, agent, limits)
    return summary(bench, single, agent, turns, limits)


Rows = dict[str, dict[str, float]]
"""What each way to train gave: seconds and CPU seconds of a step, trained tokens a second, memory."""


def measure_shape(bench: Bench, name: str, rows: dict[str, int]) -> Rows:
    sizes = bench.sizes
    repeats = sizes.repeats if name == "single turn" else sizes.agent_repeats
    by_call = sizes.single if name == "single turn" else sizes.agent_by_call
    whole = sizes.single if name == "single turn" else sizes.agent
    found: Rows = {}
    for way, layout, shape in (
        ("forest", "forest", whole),
        ("forest, least", "forest", whole),
        ("padded", "padded", by_call),
    ):
        which = "agent by call" if name == "agent" and layout == "padded" else name
        least = way == "forest, least"
        steps = bench.run(
            "ours",
            "steps",
            layout=layout,
            shape=asdict(shape),
            repeats=repeats if not least else 0,
            checkpointing=least,
            logprobs=bench.logprobs(which),
            gradients=None if least else bench.gradients(f"{name}, {layout}"),
        )
        found[way] = steps | {"tokens_per_s": shape.sampled / steps["seconds"]}
    for form in FORMS[name]:
        shape = by_call if form == "call" else whole
        # The least memory that TRL can do with: one row at a time, and its activations computed again.
        variants = [(form, rows[form], repeats, False)] + [(f"{form}, least", 1, 0, True)] * (form == "conversation")
        for variant, size, steps_after, checkpointing in variants:
            steps = bench.run(
                "trl",
                "steps",
                form=form,
                shape=asdict(shape),
                members=shape.members,
                size=size,
                repeats=steps_after,
                checkpointing=checkpointing,
                gradients=None if checkpointing else bench.gradients(f"{name}, TRL {form}"),
            )
            found[f"TRL {variant}"] = steps | {"tokens_per_s": shape.sampled / steps["seconds"], "rows": size}
    print(f"\n{name:28} {'s a step':>9} {'CPU s':>8} {'trained tokens/s':>17} {'memory MB':>10}  rows at once")
    for way, row in found.items():
        print(
            f"{way:28} {row['seconds']:9.2f} {row['cpu']:8.2f} {row['tokens_per_s']:17.2f} {row['memory_mb']:10.0f}  "
            f"{row.get('rows', '')}"
        )
    return found


def print_turns(turns: dict[str, dict[str, float]]) -> None:
    print(f"\n{'turns':>6} {'forest s':>9} {'padded s':>9}   the same number of new tokens")
    for count, seconds in turns["forest"].items():
        print(f"{count:>6} {seconds:9.2f} {turns['padded'][count]:9.2f}")


def print_limits(single: Rows, agent: Rows, limits: dict[str, Any]) -> None:
    peak = limits["peak_gflops"]
    print(f"\nmatrix products: {peak['float32']:.0f} GFLOP/s in float32, {peak['bfloat16']:.0f} in bfloat16")
    for name, row in (("single turn", single["forest"]), ("agent", agent["forest"])):
        needed = limits["needed"][name]
        print(
            f"{name}: {needed['unique_tokens']} unique tokens, {needed['gflop']:.0f} GFLOP needed, "
            f"{needed['gflop'] / row['seconds']:.0f} GFLOP/s, {needed['unique_tokens'] / row['seconds']:.0f} tokens/s"
        )
    print(f"dense rows: {limits['dense_tokens_per_s']:.0f} tokens/s")


def summary(bench: Bench, single: Rows, agent: Rows, turns: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    errors = {
        "single turn": grad_error(bench, "single turn, forest", "single turn, TRL conversation"),
        "agent, padded": grad_error(bench, "agent, padded", "agent, TRL call"),
        "agent, conversation": grad_error(bench, "agent, forest", "agent, TRL conversation"),
    }
    both = {"single_turn": single, "agent": agent}
    peak = limits["peak_gflops"]["float32"]
    unique = limits["needed"]["single turn"]["unique_tokens"]
    by_form = {form: ratio(agent["forest"], agent[f"TRL {form}"], "tokens_per_s") for form in FORMS["agent"]}
    found: dict[str, Any] = {
        "speedup_single_turn": ratio(single["forest"], single["TRL conversation"], "tokens_per_s"),
        "speedup_agent": min(by_form.values()),
        "speedup_agent_by_trl_form": by_form,
        "memory_ratio_single_turn": max(memory_ratios(single).values()),
        "memory_ratio_agent": max(memory_ratios(agent).values()),
    }
    return found | {
        "memory_ratios": {name: memory_ratios(f) for name, f in both.items()},
        "speedup_vs_padded": {name: ratio(f["forest"], f["padded"], "tokens_per_s") for name, f in both.items()},
        "memory_ratio_vs_padded": {name: ratio(f["forest"], f["padded"], "memory_mb") for name, f in both.items()},
        "max_grad_rel_error": max(errors.values()),
        "grad_rel_errors": errors,
        "fraction_of_dense": round(unique / single["forest"]["seconds"] / limits["dense_tokens_per_s"], 3),
        "fraction_of_peak": {
            name: round(limits["needed"][shape]["gflop"] / f["forest"]["seconds"] / peak, 3)
            for (name, f), shape in zip(both.items(), limits["needed"], strict=True)
        },
        "limits": limits,
        "cost_by_turns": turns,
        "measured": both,
    }


def ratio(ours: dict[str, float], other: dict[str, float], what: str) -> float:
    return round(ours[what] / other[what], 3)


def memory_ratios(found: Rows) -> dict[str, float]:
    """Ours over TRL's, with activations kept and without."""
    return {
        way: ratio(found["forest, least" if way.endswith("least") else "forest"], row, "memory_mb")
        for way, row in found.items()
        if way.startswith("TRL")
    }


def grad_error(bench: Bench, ours: str, theirs: str) -> float:
    """The largest distance of a weight's gradients, over the norm of TRL's."""
    mine, other = load_file(bench.gradients(ours)), load_file(bench.gradients(theirs))
    if mine.keys() != other.keys():
        sys.exit(f"the gradients of {ours} and {theirs} are of different weights")
    errors = [float(np.linalg.norm(mine[name] - other[name]) / np.linalg.norm(other[name])) for name in other]
    return max(errors)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.system()} {platform.machine()}, {(names or ['?'])[0]}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
