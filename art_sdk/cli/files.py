"""`art export` and `art import`: trajectories into a file and out of one."""

from pathlib import Path
from typing import Annotated

import typer

from ..store import open_store, transfer
from .console import StoreOption, console, existing_store


def export(
    path: Annotated[Path, typer.Argument(help="The file to write; its ending gives the format.")],
    form: Annotated[
        str | None, typer.Option("--format", help="jsonl, parquet, otlp or preference; by the ending otherwise.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only of this function.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only answered by, or meant for, this policy.")] = None,
    status: Annotated[str | None, typer.Option(help="Only with this status.")] = "finished",
    min_reward: Annotated[float | None, typer.Option(help="Only with a reward of at least this.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many, newest first; all by default.")] = None,
    store: StoreOption = None,
) -> None:
    """Write trajectories to a file: for supervised or preference tuning, for analysis, or for another store."""
    form = form or ("parquet" if path.suffix == ".parquet" else "jsonl")
    with existing_store(store) as opened:
        wanted = opened.trajectories(
            name=name, policy=policy, status=status, min_reward=min_reward, tag=tag, limit=limit
        )
        count = transfer.export(opened.database, wanted, path, form)
        console.print(f"{count} {'pairs' if form == 'preference' else 'trajectories'} in {path} ({form})")


def import_(
    path: Annotated[Path, typer.Argument(help="An export of ours, or chats as JSON lines.")], store: StoreOption = None
) -> None:
    """Read trajectories from a file into the store. Those that it has already are left as they are."""
    with open_store(store) as opened:
        found = transfer.import_wholes(opened.database, transfer.read_file(path))
        known = f", {found.known} were there already" if found.known else ""
        console.print(f"{found.trajectories} trajectories imported into {opened.database.name}{known}")
