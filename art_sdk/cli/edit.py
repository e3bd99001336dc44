"""`art label`, `art delete`, `art prune`: what people do to trajectories afterwards."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from ..errors import ArtError
from ..store.filters import Filters
from .console import StoreOption, console, existing_store

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def label(
    trajectory: Annotated[str, typer.Argument(help="Its id, or the start of it.")],
    reward: Annotated[float | None, typer.Option(help="Add to its reward.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Give it a tag; may be repeated.")] = None,
    untag: Annotated[list[str] | None, typer.Option(help="Take a tag from it; may be repeated.")] = None,
    exclude: Annotated[
        bool | None, typer.Option("--exclude/--include", help="Keep it out of training, or let it in again.")
    ] = None,
    store: StoreOption = None,
) -> None:
    """Add a reward or tags to a trajectory, or keep it out of training."""
    if reward is None and not tag and not untag and exclude is None:
        raise ArtError("say what to do: --reward, --tag, --untag, --exclude or --include")
    with existing_store(store) as opened:
        identity = opened.trajectory(trajectory).id
        if reward is not None:
            opened.reward(identity, reward)
        if tag:
            opened.tag(identity, *tag)
        if untag:
            opened.untag(identity, *untag)
        if exclude is not None:
            opened.exclude(identity, excluded=exclude)
        found = opened.trajectory(identity)
        console.print(
            f"{found.name} {found.id}: reward {found.reward}, tags {', '.join(found.tags) or 'none'}, {found.standing}"
        )


def delete(
    trajectory: Annotated[str, typer.Argument(help="Its id, or the start of it.")], store: StoreOption = None
) -> None:
    """Delete a trajectory, and the contents that no other one has."""
    with existing_store(store) as opened:
        identity = opened.trajectory(trajectory).id
        opened.delete(identity)
        console.print(f"{identity} is deleted")


def prune(
    older_than: Annotated[str | None, typer.Option(help="Begun longer ago than this: 12h, 30d, 8w.")] = None,
    name: Annotated[str | None, typer.Option(help="Only of this function.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only answered by, or meant for, this policy.")] = None,
    status: Annotated[str | None, typer.Option(help="Only with this status: failed, abandoned, …")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    text: Annotated[str | None, typer.Option(help="Only with these words in a message. Slow.")] = None,
    keep_rewarded: Annotated[bool, typer.Option("--keep-rewarded", help="Spare those with a reward.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Give the room back to the disk. Locks a SQLite store.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Delete the trajectories that the filters find. What still runs or is being trained on is left."""
    filters: Filters = {
        "until": datetime.now(UTC) - age(older_than) if older_than else None,
        "name": name,
        "policy": policy,
        "status": status,
        "tag": tag,
        "text": text,
    }
    with existing_store(store) as opened:
        if dry_run:
            found = sum(1 for run in opened.trajectories(**filters) if run.reward is None or not keep_rewarded)
            console.print(f"{found} trajectories would be deleted")
            return
        deleted = opened.prune(keep_rewarded=keep_rewarded, **filters)
        left = f", {deleted.busy} left because they run or are being trained on" if deleted.busy else ""
        console.print(f"{deleted.trajectories} trajectories deleted{left}")
        if vacuum:
            opened.vacuum()


def age(words: str) -> timedelta:
    """`30d` as a time. Raises `ArtError` for what is none."""
    found = re.fullmatch(r"(\d+)([mhdw])", words)
    if found is None:
        raise ArtError(f"{words!r} is no age: write a number and m, h, d or w, such as 30d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
