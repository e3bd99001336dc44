"""Where the commands print, and the few things that all of them print alike."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from .. import settings
from ..errors import ArtError
from ..store import Database, Store, open_store, steps

console = Console()
errors = Console(stderr=True)

NO_POLICY = "no policy yet: art up --base-model FOLDER --policy NAME"

StoreOption = Annotated[
    str | None, typer.Option("--store", help="URL of the trajectory store; ART_STORE_URL by default.")
]


def known_policies(database: Database, wanted: str | None) -> list[str]:
    """All of the store's policies, or the one that is wanted. Raises `ArtError` where that is unknown."""
    known = steps.policies(database)
    if wanted is None:
        return known
    if wanted not in known:
        there_are = f"there are: {', '.join(known)}" if known else NO_POLICY
        raise ArtError(f"there is no policy {wanted!r} in {database.name}; {there_are}")
    return [wanted]


def existing_store(url: str | None) -> Store:
    """Open a store to look into it: a SQLite file that isn't there is an error, not a new store."""
    url = url or settings.get_settings().resolved_store_url()
    return open_store(url, create=False)


def when(nanoseconds: int | None) -> str:
    if nanoseconds is None:
        return ""
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).astimezone().strftime("%m-%d %H:%M:%S")
