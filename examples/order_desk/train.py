"""Train the order desk while it runs: `python -m examples.order_desk.train --seed 0`, in six to nine minutes.

What a user adds to an agent is in `main`: the decorator, the reward, `LocalBackend` and `art.rollouts`.
The rest shows the progress.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import art_sdk as art
from art_sdk.training.options import LoraOptions, TrainingOptions
from examples.order_desk.agent import build_agent
from examples.order_desk.tickets import Ticket, make_tickets, write_orders
from examples.tiny_model import tiny_model

POLICY = "order-desk"
console = Console(highlight=False)


def score(desk: dict[str, Any], ticket: Ticket) -> float:
    """Half for the right order number, half for the right reply, and nothing for almost."""
    right_reply = f"Your order {ticket.order} is {ticket.state}."
    return 0.5 * (desk["order"] == ticket.order) + 0.5 * (desk["reply"] == right_reply)


def main() -> None:
    options = parse_arguments()
    training, held_out = make_tickets(options.seed)
    home = options.home.resolve()
    orders = home / "orders.db"
    write_orders(orders, training + held_out)
    draw = random.Random(options.seed)
    run = Run()

    console.print("starting the engine (about a minute)")
    with art.LocalBackend(
        base_model=tiny_model(),
        policy=POLICY,
        home=home / f"seed-{options.seed}-{time.strftime('%m%d-%H%M%S')}",
        lora=LoraOptions(rank=8),
        training=TrainingOptions(learning_rate=options.learning_rate, seed=options.seed),
        groups_per_step=options.groups,
        max_model_len=256,
    ) as backend:
        agent, greedy_agent = build_agent(orders), build_agent(orders, temperature=0.0)

        @art.trajectory
        def handle(ticket: Ticket) -> str:
            desk = agent.invoke({"ticket": ticket.text})
            art.reward(score(desk, ticket))
            return desk["reply"]

        @art.trajectory(reward=score)
        def handle_greedily(ticket: Ticket) -> dict[str, Any]:
            return greedy_agent.invoke({"ticket": ticket.text})

        def held_out_reward(function: Callable[[Ticket], Any]) -> float:
            return mean_reward(art.rollouts_sync(function, held_out, group_size=1, train=False))

        run.evaluated(0, held_out_reward(handle))
        greedy_before = held_out_reward(handle_greedily)
        for number in range(1, options.steps + 1):
            with console.status(f"step {number} of {options.steps}"):
                tasks = draw.sample(training, options.groups)
                groups, seconds_rollout = timed(lambda: art.rollouts_sync(handle, tasks, group_size=8))  # noqa: B023
                step, seconds_train = timed(backend.wait_for_step)
            run.stepped(groups, step, backend.live_version(), seconds_rollout, seconds_train)
            if number % options.evaluate_every == 0 or number == options.steps:
                run.evaluated(backend.live_version(), held_out_reward(handle))
        greedy_after = held_out_reward(handle_greedily)
        versions = len(backend.versions())
        store = backend.options.store_url

    plot = home / "order_desk.png"
    draw_plot(run.held_out, plot)
    show_result(run.held_out)
    console.print(f"plot: {plot}\nlook inside: art traces --store {store}", soft_wrap=True)
    with art.open_store(store) as opened:
        trajectories = sum(1 for _ in opened.trajectories())
    result = {
        "reward_before": run.held_out[0][1],
        "reward_after": run.held_out[-1][1],
        "greedy_before": greedy_before,
        "greedy_after": greedy_after,
        "steps": options.steps,
        "versions": versions,
        "seconds_total": round(time.monotonic() - run.started, 1),
        "seconds_rollout": round(run.seconds_rollout, 1),
        "seconds_train": round(run.seconds_train, 1),
        "trajectories": trajectories,
        "store": store,
    }
    print(json.dumps(result), flush=True)


@dataclass
class Run:
    """What is measured on the way, and the lines that show it."""

    started: float = field(default_factory=time.monotonic)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    steps: int = 0
    seconds_rollout: float = 0.0
    seconds_train: float = 0.0

    def evaluated(self, version: int, reward: float) -> None:
        self.held_out.append((version, reward))
        console.print(f"held-out reward of {POLICY}@{version}: {reward:.3f}")

    def stepped(
        self,
        groups: list[art.RolloutGroup[Ticket]],
        step: Any,
        version: int,
        seconds_rollout: float,
        seconds_train: float,
    ) -> None:
        self.steps += 1
        self.seconds_rollout += seconds_rollout
        self.seconds_train += seconds_train
        console.print(
            f"step {self.steps:2d}  reward {mean_reward(groups):.3f}"
            f"  zero-variance {step.metrics['zero_variance_groups']:4.0%}  tokens {step.metrics['tokens']:4.0f}"
            f"  served @{version}  rollout {seconds_rollout:4.1f} s  train {seconds_train:4.1f} s"
            + (f"\n         {step.note}" if step.note else ""),
            soft_wrap=True,
        )


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    started = time.monotonic()
    return run(), time.monotonic() - started


def mean_reward(groups: list[art.RolloutGroup[Ticket]]) -> float:
    """Over all runs; one that failed earned nothing."""
    return statistics.fmean(rollout.reward or 0.0 for group in groups for rollout in group.rollouts)


def show_result(held_out: list[tuple[int, float]]) -> None:
    table = Table(title="held-out tickets", title_justify="left", box=None)
    table.add_column("version")
    table.add_column("reward", justify="right")
    for version, reward in held_out:
        table.add_row(f"{POLICY}@{version}", f"{reward:.3f}")
    console.print(table)


def draw_plot(held_out: list[tuple[int, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    axes.plot(*zip(*held_out, strict=True), marker="o")
    axes.set(xlabel="version", ylabel="reward", title="Order desk: reward on held-out tickets", ylim=(0, 1))
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the order desk while it runs.")
    parser.add_argument("--seed", type=int, default=0, help="of tickets, order of tasks and adapter")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--groups", type=int, default=4, help="tickets in a step; each is run 8 times")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--evaluate-every", type=int, default=2, help="steps between evaluations")
    parser.add_argument(
        "--home", type=Path, default=Path(".art"), help="folder of the order database, the runs and the plot"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
