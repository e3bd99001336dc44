"""TRL's side: a `GRPOTrainer` that trains on given rollouts. Runs in TRL's environment; prints one JSON line.

It is what a user of TRL has, `GRPOTrainer(...).train()` with its own loss, optimizer and accumulation. Only
`_prepare_inputs`, which would generate, hands out the rollouts instead, with the keys that TRL's own generation gives
`_compute_loss`. In TRL's favour, rows of one length stand together and each micro-batch is padded to its own longest
row; TRL itself shuffles them and pads all to the longest.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-not-found]
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

from .meter import Meter
from .rollouts import Shape, Trajectory, trajectories

_TUNED_ON = 8


@dataclass(frozen=True)
class Row:
    prompt: list[int]
    completion: list[int]
    trained: list[int]
    """1 for what was sampled, 0 for what a tool said."""
    advantage: float


class PreparedTrainer(GRPOTrainer):  # type: ignore[misc]
    """Trains on `micro_batches`, the same ones every step."""

    micro_batches: list[dict[str, Any]]

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        step: int = self._step
        return self.micro_batches[step % len(self.micro_batches)]


class Watch(TrainerCallback):
    """Meters each step, and keeps the gradients of the first."""

    def __init__(self, gradients: str | None) -> None:
        self.meter = Meter()
        self.gradients = gradients

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.meter.start()

    def on_pre_optimizer_step(self, *_: Any, **given: Any) -> None:
        if self.gradients and not self.meter.seconds:
            weights = given["model"].named_parameters()
            save_file({name: weight.grad for name, weight in weights if weight.grad is not None}, self.gradients)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.meter.stop()


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    print(json.dumps(tune(given) if given["task"] == "tune" else steps(given)))


def tune(given: dict[str, Any]) -> dict[str, int]:
    """Of each form, the rows in a forward pass that are fastest for a few rows of middle length."""
    found = {}
    for form, shape in given["forms"].items():
        rows = rows_of(form, Shape(**shape))
        middle = max(0, len(rows) - _TUNED_ON) // 2
        few = rows[middle : middle + _TUNED_ON]
        train(given, few, size=1, steps=1)
        seconds = {size: train(given, few, size, steps=1)["seconds"] for size in given["sizes"]}
        print(f"TRL, {form}: seconds by rows in a forward pass: {seconds}", file=sys.stderr)
        found[form] = min(seconds, key=seconds.__getitem__)
    return found


def steps(given: dict[str, Any]) -> dict[str, float]:
    rows = rows_of(given["form"], Shape(**given["shape"]))
    return train(given, rows, given["size"], given["repeats"] + 1, given["checkpointing"], given["gradients"])


def train(
    given: dict[str, Any],
    rows: list[Row],
    size: int,
    steps: int,
    checkpointing: bool = False,
    gradients: str | None = None,
) -> dict[str, float]:
    """`size` rows in a forward pass, all rows in a step."""
    size = min(size, len(rows))
    base = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32, local_files_only=True)
    watch = Watch(gradients)
    with tempfile.TemporaryDirectory() as folder:
        trainer = PreparedTrainer(
            model=PeftModel.from_pretrained(base, given["adapter"], is_trainable=True),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=GRPOConfig(
                output_dir=folder,
                loss_type="dapo",
                beta=0.0,
                epsilon=0.2,
                epsilon_high=0.28,
                num_iterations=1,
                num_generations=given["members"],
                per_device_train_batch_size=size,
                gradient_accumulation_steps=len(rows) // size,
                gradient_checkpointing=checkpointing,
                max_steps=steps,
                learning_rate=given["learning_rate"],
                lr_scheduler_type="constant",
                max_grad_norm=given["max_grad_norm"],
                bf16=False,
                use_cpu=True,
                report_to="none",
                logging_strategy="no",
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": [""] * len(rows)}),
            processing_class=AutoTokenizer.from_pretrained(given["model"], local_files_only=True),
            callbacks=[watch],
        )
        trainer.micro_batches = micro_batches(rows, size)
        trainer.train()
    return watch.meter.result()


def rows_of(form: str, shape: Shape) -> list[Row]:
    """The longest first. `call`: each call is a row; `conversation`: each trajectory is."""
    found = trajectories(shape)
    rows = [row for run in found for row in (call_rows(run) if form == "call" else [conversation_row(run)])]
    return sorted(rows, key=lambda row: -len(row.prompt) - len(row.completion))


def call_rows(run: Trajectory) -> list[Row]:
    return [Row(prompt, answer, [1] * len(answer), run.reward - 0.5) for prompt, answer in run.calls]


def conversation_row(run: Trajectory) -> Row:
    completion: list[int] = []
    trained: list[int] = []
    for answer, tool in zip(run.answers, [*run.tools, []], strict=True):
        completion += [*answer, *tool]
        trained += [1] * len(answer) + [0] * len(tool)
    return Row(run.first_prompt, completion, trained, run.reward - 0.5)


def micro_batches(rows: list[Row], size: int) -> list[dict[str, Any]]:
    total = torch.tensor(sum(sum(row.trained) for row in rows))
    found = []
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        prompts = [row.prompt for row in batch]
        completions = [row.completion for row in batch]
        found.append(
            {
                "prompt_ids": padded(prompts, left=True),
                "prompt_mask": padded([[1] * len(ids) for ids in prompts], left=True),
                "completion_ids": padded(completions),
                "completion_mask": padded([[1] * len(ids) for ids in completions]),
                "tool_mask": padded([row.trained for row in batch]),
                "advantages": torch.tensor([row.advantage for row in batch]),
                "num_items_in_batch": total,
            }
        )
    return found


def padded(rows: list[list[int]], left: bool = False) -> torch.Tensor:
    longest = max(map(len, rows))
    padding = [[0] * (longest - len(row)) for row in rows]
    return torch.tensor([pad + row if left else row + pad for row, pad in zip(rows, padding, strict=True)])


if __name__ == "__main__":
    main()
