"""Where the commands print, and the few things that all of them print alike."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from .. import settings
from ..errors import ArtError
from ..store import Database, Store, open_store, steps

# What is printed is data: square brackets and colons in it are no markup.
# In a pipe nothing is cut to fit.
console = Console(markup=False, emoji=False, width=None if sys.stdout.isatty() else 300)
errors = Console(stderr=True, markup=False, emoji=False, soft_wrap=True)

NO_POLICY = "no policy yet: art up --base-model FOLDER --policy NAME"

StoreOption = Annotated[
    str | None, typer.Option("--store", help="URL of the trajectory store; ART_STORE_URL by default.")
]


def known_policy(database: Database, name: str) -> str:
    """The name again. Raises `ArtError` where the store has no such policy."""
    known = steps.policies(database)
    if name not in known:
        there_are = f"there are: {', '.join(known)}" if known else NO_POLICY
        raise ArtError(f"there is no policy {name!r} in {database.name}; {there_are}")
    return name


def existing_store(url: str | None) -> Store:
    """Open a store to look into it: a SQLite file that isn't there is an error, not a new store."""
    url = url or settings.get_settings().resolved_store_url()
    return open_store(url, create=False)


def when(nanoseconds: int | None) -> str:
    if nanoseconds is None:
        return ""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).astimezone().strftime("%m-%d %H:%M:%S")
