"""`art status`: is it running, what waits, what was learned last."""

import time

from rich.table import Table

from ..capture.health import backlog
from ..settings import get_settings
from ..store import queue, reading, steps
from .console import NO_POLICY, StoreOption, console, existing_store, when


def status(store: StoreOption = None) -> None:
    """Show the store, the policies and what waits to be trained on."""
    with existing_store(store) as opened:
        database = opened.database
        console.print(f"store     {database.name}", highlight=False)
        counts = reading.count_by_status(database)
        total = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none yet"
        console.print(f"captured  {total}", highlight=False)
        folder = get_settings().home / "journal"
        waiting, _ = backlog(folder, reading.drained_positions(database))
        console.print(f"journal   {waiting} bytes wait in {folder}", highlight=False)
        table = Table(box=None, header_style="bold")
        for title in ("policy", "answered by", "groups ready", "steps", "last step"):
            table.add_column(title)
        for name in steps.policies(database):
            live = [version.name for version in steps.versions(database, name) if version.status == "live"]
            done = steps.steps(database, name)
            last = (
                f"{when(done[-1].ended_at)}: {done[-1].note or f'made version {done[-1].version}'}"
                if done
                else "none yet"
            )
            waiting = queue.queued(database, name, time.time_ns())
            table.add_row(name, ", ".join(live), str(waiting), str(len(done)), last)
        if table.row_count:
            console.print(table)
        else:
            console.print(NO_POLICY)
