"""Our side: `Trainer.step` on the rollouts, and what this machine could do at best. Prints one JSON line."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from peft.tuners.lora import Linear
from safetensors.torch import load_file, save_file
from torch import nn

from art_sdk.store.batch import ClaimedGroup, Member
from art_sdk.training.batch import token_logprobs
from art_sdk.training.forest import forest_batches
from art_sdk.training.model import backbone_and_head, load_policy
from art_sdk.training.options import LoraOptions, TrainingOptions
from art_sdk.training.step import Trainer
from art_sdk.training.tokens import Call
from benchmarks.forest import completion

from .meter import Meter
from .rollouts import Shape, Trajectory, trajectories

LORA = LoraOptions(rank=16)


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    tasks = {"prepare": prepare, "steps": steps, "turns": turns, "limits": limits}
    print(json.dumps(tasks[given["task"]](given)))


def prepare(given: dict[str, Any]) -> dict[str, float]:
    """The adapter that both sides start from, and its log-probabilities: with them as the sampler's, ratios are 1."""
    model = load_policy(given["model"], LORA, seed=1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.01)  # at zero, A would have no gradient to compare
    model.save_pretrained(given["adapter"], save_embedding_layers=False)
    for path, shape in given["shapes"].items():
        found: dict[str, list[float]] = {}
        for batch in forest_batches(calls(trajectories(Shape(**shape))), 1024, model.device):
            with torch.no_grad():
                logprobs_T = token_logprobs(model, batch)
            for index, call in enumerate(batch.calls):
                found[_key(call.trajectory_id, call.prompt_ids)] = logprobs_T[batch.calls_T == index].tolist()
        Path(path).write_text(json.dumps(found))
    return {}


def steps(given: dict[str, Any]) -> dict[str, float]:
    """As the table's rows say; the gradients of the first step go to a file."""
    logprobs = json.loads(Path(given["logprobs"]).read_text())
    groups = claimed(trajectories(Shape(**given["shape"])), logprobs)
    trainer = make_trainer(given, given["layout"], given["checkpointing"])
    meter = Meter()
    for step in range(given["repeats"] + 1):
        meter.start()
        metrics = trainer.step(groups).metrics
        meter.stop()
        if step == 0:
            first = metrics
        if step == 0 and given["gradients"]:
            save_file(
                {name: w.grad for name, w in trainer.model.named_parameters() if w.grad is not None}, given["gradients"]
            )
    return {**meter.result(), "grad_norm": first["grad_norm"], "ratio_max": first["ratio_max"]}


def turns(given: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Seconds of a step by the number of turns, for each layout."""
    found: dict[str, dict[int, float]] = {}
    for layout in ("forest", "padded"):
        trainer = make_trainer(given, layout)
        trainer.step(claimed(trajectories(Shape(**given["shapes"][0]))))
        found[layout] = {}
        for shape in (Shape(**fields) for fields in given["shapes"]):
            meter = Meter()
            groups = claimed(trajectories(shape))
            for _ in range(given["repeats"]):
                meter.start()
                trainer.step(groups)
                meter.stop()
            found[layout][shape.turns] = meter.result()["seconds"]
    return found


def limits(given: dict[str, Any]) -> dict[str, Any]:
    """What the machine's matrix products reach, what a step needs at least, and the speed of dense rows."""
    shape = Shape(**given["shapes"]["single turn"])
    trainer = make_trainer(given, "forest")
    needed = {name: needs(trainer.model, trajectories(Shape(**fields))) for name, fields in given["shapes"].items()}
    return {
        "peak_gflops": {
            "float32": matrix_peak(given["matrix"], torch.float32),
            "bfloat16": matrix_peak(given["matrix"], torch.bfloat16),
        },
        "needed": needed,
        "dense_tokens_per_s": dense_speed(
            trainer.model, int(needed["single turn"]["unique_tokens"]), shape.sampled, given["repeats"]
        ),
    }


def matrix_peak(size: int, dtype: torch.dtype) -> float:
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    out = torch.mm(a, b)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        seconds.append(time.perf_counter() - started)
    return 2e-9 * size**3 / min(seconds)


def needs(model: PeftModel, runs: list[Trajectory]) -> dict[str, float]:
    """Tokens that must be computed, each distinct prefix once, and the products that they take, forward and backward.

    Counted, with 2 operations a multiply-add: each linear layer's frozen weights forward and for the gradient of its
    input; the adapter's forward, for its input and for its weights; attention scores and sums over a token's own
    ancestors, forward once and backward twice; the head, forward and backward, once for each position that predicts.
    Not counted: norms, activations, softmax, the optimizer, and whatever is computed a second time or masked after.
    """
    frozen = sum(module.get_base_layer().weight.numel() for module in model.modules() if isinstance(module, Linear))
    adapter = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    config = model.get_base_model().config
    width = config.num_attention_heads * config.head_dim
    tokens = ancestors = positions = 0
    for group in sorted({run.group for run in runs}):
        together = calls([run for run in runs if run.group == group])
        (row,) = forest_batches(together, 2**30, torch.device("cpu"))
        tokens += row.input_ids_BL.numel()
        ancestors += int((row.position_ids_BL + 1).sum())
        positions += len(set(row.positions_T.tolist()))
    products = tokens * (4 * frozen + 6 * adapter)
    products += 12 * config.num_hidden_layers * width * ancestors
    products += 4 * positions * config.vocab_size * config.hidden_size
    return {"unique_tokens": tokens, "gflop": 1e-9 * products}


def dense_speed(model: PeftModel, tokens: int, sampled: int, repeats: int) -> float:
    """Tokens a second of rows of about a thousand tokens with nothing in common: forward, backward, no optimizer."""
    count = max(1, round(tokens / 1024))
    length, predicting = tokens // count, sampled // count
    backbone, head = backbone_and_head(model)
    ids = torch.randint(100, 49_000, (count, length))
    targets = torch.randint(100, 49_000, (predicting,))
    meter = Meter()
    for _ in range(repeats + 1):
        meter.start()
        for row in ids:
            # Without a mask, attention is causal by the kernel's own switch, which skips what isn't seen.
            hidden = backbone(input_ids=row[None], use_cache=False).last_hidden_state[0]
            loss = nn.functional.cross_entropy(head(hidden[-predicting:]), targets)
            torch.autograd.backward(loss)
        meter.stop()
    return count * length / meter.result()["seconds"]


def make_trainer(given: dict[str, Any], layout: str, checkpointing: bool = False) -> Trainer:
    options = TrainingOptions.model_validate(
        {
            "layout": layout,
            "checkpointing": checkpointing,
            "learning_rate": given["learning_rate"],
            "max_grad_norm": given["max_grad_norm"],
        }
    )
    trainer = Trainer(given["model"], LORA, options)
    set_peft_model_state_dict(trainer.model, load_file(Path(given["adapter"]) / "adapter_model.safetensors"))
    return trainer


def calls(runs: list[Trajectory]) -> list[Call]:
    return [
        Call(run.identity, tuple(prompt), tuple(answer), (0.0,) * len(answer), 1.0, 0)
        for run in runs
        for prompt, answer in run.calls
    ]


def claimed(runs: list[Trajectory], logprobs: dict[str, list[float]] | None = None) -> list[ClaimedGroup]:
    members: dict[int, list[Member]] = {}
    for run in runs:
        completions = tuple(
            completion(run.identity, turn, prompt, answer, logprobs[_key(run.identity, prompt)] if logprobs else None)
            for turn, (prompt, answer) in enumerate(run.calls)
        )
        member = Member(run.identity, "handle", "finished", run.reward, False, completions)
        members.setdefault(run.group, []).append(member)
    return [ClaimedGroup(str(group), "policy", tuple(found)) for group, found in members.items()]


def _key(trajectory_id: str, prompt_ids: list[int] | tuple[int, ...]) -> str:
    return f"{trajectory_id}:{len(prompt_ids)}"


if __name__ == "__main__":
    main()
