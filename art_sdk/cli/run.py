"""`art run -- python agent.py`: the same program, with every agent run in it a trajectory."""

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from ..settings import absolute, get_settings


def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    policy: Annotated[str | None, typer.Option(help="The policy that is to learn; ART_POLICY by default.")] = None,
    home: Annotated[Path | None, typer.Option(help="Folder of the journal and the store; ART_HOME by default.")] = None,
    store: Annotated[str | None, typer.Option(help="URL of the trajectory store; ART_STORE_URL by default.")] = None,
) -> None:
    """Run a program; every agent run in it becomes a trajectory, without a change to its code."""
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(f"art run: there is no program {command[0]!r}: expected as in `art run -- python agent.py`")
    settings = get_settings()
    # Absolute: the program may go elsewhere, and its child processes write to the same place.
    given = {
        "ART_AUTO": "1",
        "ART_POLICY": policy,
        "ART_HOME": str((home or settings.home).resolve()),
        "ART_STORE_URL": absolute(store or settings.store_url) or None,
    }
    os.environ.update({name: value for name, value in given.items() if value is not None})
    os.execv(program, command)
