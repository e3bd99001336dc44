"""The trajectory store: the product's memory and its queue."""

from .database import Database
from .store import Store

__all__ = ["Database", "Store", "open_store"]


def open_store(url: str | None = None, *, create: bool = True) -> Store:
    """Open a store to read it: `sqlite:///path`, `postgresql://…`, or `ART_STORE_URL` by default.

    With `create=False` a SQLite file that does not exist is an error. Raises `StoreError` where the
    store cannot be opened or is none.
    """
    from ..settings import get_settings

    return Store(Database(url or get_settings().resolved_store_url(), create=create))
