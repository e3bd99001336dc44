"""`art up`: engine, gateway and trainer in this shell, for agents in other ones."""

import logging
import shlex
import signal
from pathlib import Path
from typing import Annotated

import typer

from ..errors import EngineError
from .console import console


def up(
    base_model: Annotated[str, typer.Option(help="Folder of the base model, or its name on the Hugging Face hub.")],
    policy: Annotated[str, typer.Option(help="Name that agents ask for instead of a model.")],
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The gateway's port; a free one by default.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="Folder of store, versions and logs; ART_HOME, or .art.")] = None,
    store: Annotated[str | None, typer.Option(help="URL of the trajectory store; ART_STORE_URL by default.")] = None,
    rank: Annotated[int, typer.Option(help="Rank of the LoRA adapter.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="AdamW's learning rate.")] = 1e-4,
    groups_per_step: Annotated[int, typer.Option(min=1, help="Ready groups that make a step.")] = 4,
    batch_wait: Annotated[float, typer.Option(min=0, help="Seconds after which fewer groups make a step.")] = 10.0,
    max_model_len: Annotated[int | None, typer.Option(help="Tokens of prompt and answer together.")] = None,
    tool_call_parser: Annotated[str | None, typer.Option(help="vLLM's parser of the model's tool calls.")] = None,
) -> None:
    """Serve a policy and train it in the background until Ctrl-C."""
    from ..backend.local import LocalBackend
    from ..backend.options import checked
    from ..training.options import LoraOptions, TrainingOptions

    logging.getLogger("art_sdk").setLevel(logging.INFO)
    backend = LocalBackend(
        base_model=base_model,
        policy=policy,
        home=home,
        store=store,
        lora=checked(LoraOptions, rank=rank),
        training=checked(TrainingOptions, learning_rate=learning_rate),
        groups_per_step=groups_per_step,
        batch_wait=batch_wait,
        port=port,
        max_model_len=max_model_len,
        tool_call_parser=tool_call_parser,
        set_env=False,
    )
    signal.signal(signal.SIGTERM, _interrupt)
    with console.status("starting the engine (about a minute)"):
        backend.__enter__()
    try:
        console.print(f"{policy} is served. In the agent's shell:\n", highlight=False)
        for name, value in backend.env.items():
            print(f"export {name}={shlex.quote(value)}", flush=True)  # noqa: T201  (rich would wrap long values)
        console.print(f"\nLogs in {backend.options.home / 'logs'}. Ctrl-C ends it all.", highlight=False)
        while True:
            try:
                step = backend.wait_for_step(timeout=float("inf"))
            except EngineError as error:
                if backend.failure is not None:
                    raise
                console.print(str(error), style="red", markup=False, highlight=False)  # a version: the one before stays
                continue
            made = f"made {policy}@{step.version}" if step.version else step.note
            reward = step.metrics.get("reward_mean")
            console.print(
                f"step {step.step}: {made}" + ("" if reward is None else f", reward {reward:.3f}"), highlight=False
            )
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        backend.__exit__(None, None, None)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
