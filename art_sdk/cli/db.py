"""`art db`: the store as a database. `art copy`: one store into another."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..errors import ArtError
from ..settings import get_settings
from ..store import Database, checks, transfer
from .console import StoreOption, console, existing_store

db = typer.Typer(help="Check, upgrade or back up the trajectory store.", no_args_is_help=True)


@db.command()
def check(store: StoreOption = None) -> None:
    """Look for what doesn't agree with itself; exit code 1 if there is something."""
    with existing_store(store) as opened:
        table = Table(box=None, show_header=False)
        for fault in checks.check(opened.database, get_settings().home.resolve()):
            table.add_row(str(fault.count), fault.what, f"such as {fault.example}")
            table.add_row("", "", f"→ {fault.cure}")
        if table.row_count:
            console.print(table)
            raise typer.Exit(1)
        console.print(f"{opened.database.name} is consistent")


@db.command()
def upgrade(store: StoreOption = None) -> None:
    """Bring the tables to this version's form, at a time that you choose: whoever opens a store does it too."""
    with existing_store(store) as opened:
        console.print(f"{opened.database.name} has schema {opened.database.revision()}")


@db.command()
def backup(
    path: Annotated[Path, typer.Argument(help="A new file.")],
    store: StoreOption = None,
) -> None:
    """Copy a SQLite store into a file while it is in use."""
    with existing_store(store) as opened:
        checks.backup(opened.database, path)
        console.print(f"{opened.database.name} is in {path}, {path.stat().st_size / 1e6:.1f} MB")


def copy(
    source: Annotated[str, typer.Argument(help="URL of a store.")],
    target: Annotated[str, typer.Argument(help="URL of an empty store, or of one to be made.")],
) -> None:
    """Copy a store into an empty one, from SQLite to Postgres or back."""
    if source == target:
        raise ArtError("source and target are the same store")
    with existing_store(source) as opened:
        destination = Database(target)
        try:
            copied = transfer.copy(opened.database, destination)
        finally:
            destination.close()
        total = sum(copied.values())
        console.print(f"{total} rows copied, {copied['trajectories']} trajectories")
        console.print("now let ART_STORE_URL name the new store")
