"""`art explain`: why a trajectory was trained on or not, and the same for a whole policy in numbers."""

from typing import Annotated

import typer
from rich.table import Table

from ..errors import ArtError
from ..store.story import counts, story
from .console import StoreOption, console, existing_store, known_policy, when

_WAIT = {
    "waiting": "wait for the rest of their group, or for rewards",
    "ready": "wait for a step",
    "leased": "are in a step now",
    "done": "came after their group was trained on: kept, not used",
}


def explain(
    trajectory: Annotated[str | None, typer.Argument(help="A trajectory: its id, or the start of it.")] = None,
    policy: Annotated[str | None, typer.Option(help="What became of this policy's trajectories, in numbers.")] = None,
    store: StoreOption = None,
) -> None:
    """Tell the story of one trajectory, or count what became of a policy's."""
    if (trajectory is None) == (policy is None):
        raise ArtError("name a trajectory or a policy: art explain ID, or art explain --policy NAME")
    table = Table(box=None, show_header=False)
    with existing_store(store) as opened:
        database = opened.database
        if trajectory is not None:
            for event in story(database, opened.trajectory(trajectory)):
                table.add_row(when(event.at) or "now", event.what)
        elif policy is not None:
            found = counts(database, known_policy(database, policy))
            table.add_row(str(found.trained), f"trained on, {found.tokens} tokens")
            for reason, count in sorted(found.left_out.items(), key=lambda item: -item[1]):
                table.add_row(str(count), f"left out, {reason}: {reason.meaning}")
            for claim, count in found.waiting.items():
                table.add_row(str(count), _WAIT[claim])
    console.print(table, highlight=False, soft_wrap=True)
