"""The trajectory store: the product's memory and its queue."""

from .database import Database
from .reading import Store


def open_store(url: str | None = None) -> Store:
    """Open a store to read it: `sqlite:///path`, `postgresql://…`, or `ART_STORE_URL` by default.

    Raises `StoreError` where it cannot be opened or is no trajectory store.
    """
    from ..settings import get_settings

    return Store(Database(url or get_settings().resolved_store_url()))
