"""`art.open_store`: the trajectories of a store, to look through, to label and to delete."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import msgspec
from sqlalchemy import RowMapping, select, text, tuple_

from ..errors import StoreError
from ..settings import get_settings
from . import editing, transfer
from . import tables as t
from .database import Database
from .editing import Deleted
from .filters import Filters, conditions
from .reading import Trajectory, as_trajectory, unpack_content
from .transfer import Imported

_PAGE = 200


class Store:
    """A trajectory store. A context manager."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    # Looking

    def trajectories(self, *, limit: int | None = None, **filters: Unpack[Filters]) -> Iterator[Trajectory]:
        """Newest first, read some at a time: a loop over millions takes no more memory than one over a few, and
        holds nobody up.

        Each filter that is given must hold: see `Filters`. Raises `ConfigError` for one that can't.
        """
        wanted = conditions(filters)
        return self._trajectories(wanted, filters.get("text"), limit)

    def _trajectories(self, wanted: Sequence[Any], words: str | None, limit: int | None) -> Iterator[Trajectory]:
        c = t.trajectories.c
        query = select(t.trajectories).where(*wanted).order_by(c.started_at.desc(), c.id.desc())
        last: RowMapping | None = None
        given = 0
        while limit is None or given < limit:
            page = query if last is None else query.where(tuple_(c.started_at, c.id) < (last["started_at"], last["id"]))
            size = _PAGE if limit is None or words is not None else min(_PAGE, limit - given)
            with self.database.read() as connection:
                rows = connection.execute(page.limit(size)).mappings().all()
            found = rows if words is None else self._with_words(rows, words)
            for row in found[: None if limit is None else limit - given]:
                given += 1
                yield as_trajectory(self.database, row)
            if len(rows) < size:
                return
            last = rows[-1]

    def _with_words(self, rows: Sequence[RowMapping], words: str) -> list[RowMapping]:
        """Those that hold a content with these words."""
        written = msgspec.json.encode(words).decode()[1:-1].casefold()
        h = t.holdings.c
        ids = [row["id"] for row in rows]
        query = select(h.trajectory_id, t.contents.c.data).join(t.contents, t.contents.c.hash == h.hash)
        matching: set[str] = set()
        with self.database.read() as connection:
            for identity, data in connection.execute(query.where(h.trajectory_id.in_(ids))):
                if identity not in matching and written in unpack_content(data).decode().casefold():
                    matching.add(identity)
        return [row for row in rows if row["id"] in matching]

    def trajectory(self, identity: str) -> Trajectory:
        """By id, or by the start of one. Raises `StoreError` where it is unknown or ambiguous."""
        c = t.trajectories.c  # ids are hex digits, so all that begin so are before this with a "g"
        query = select(t.trajectories).where(c.id >= identity, c.id < identity + "g").limit(2)
        with self.database.read() as connection:
            rows = connection.execute(query).mappings().all()
        if len(rows) != 1:
            found = "no trajectory" if not rows else "more than one trajectory"
            raise StoreError(f"{found} in {self.database.name} has an id that starts with {identity!r}: see art traces")
        return as_trajectory(self.database, rows[0])

    # Labelling. Each raises `StoreError` for a trajectory that is not there.

    def reward(self, trajectory_id: str, value: float, *, name: str = "reward", source: str = "label") -> None:
        """Add to its reward. One that comes after its group was trained on is kept and not used.

        Raises `RewardError` for what is no finite number.
        """
        editing.add_reward(self.database, trajectory_id, value, name=name, source=source, settings=get_settings())

    def tag(self, trajectory_id: str, *tags: str) -> None:
        """Give it tags; those that it has stay."""
        editing.add_tags(self.database, trajectory_id, tags)

    def untag(self, trajectory_id: str, *tags: str) -> None:
        """Take tags from it."""
        editing.remove_tags(self.database, trajectory_id, tags)

    def exclude(self, trajectory_id: str, *, excluded: bool = True) -> None:
        """Keep it out of training, or let it in again. What was trained on already stays learned."""
        editing.set_excluded(self.database, trajectory_id, excluded)

    def prioritize(self, group_id: str, priority: int) -> None:
        """Let a group be trained on before those with a lower priority; 0 by default."""
        editing.set_priority(self.database, group_id, priority)

    # Export and import

    def export(
        self, path: str | Path, *, form: str = "jsonl", limit: int | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Write what the filters find to a file; returns how many lines or rows it has.

        `form`: `jsonl` (messages and reward, for supervised tuning), `preference` (the best against the worst of each
        group), `parquet`, or `otlp` (spans, for other tools). Raises `ConfigError` for another one.
        """
        return transfer.export(self.database, self.trajectories(limit=limit, **filters), Path(path), form)

    def load(self, path: str | Path) -> Imported:
        """Read an export of ours, or chats as JSON lines (`messages` in OpenAI's form, `reward`).

        Those that the store has already are left as they are, and none is queued for training. Raises `ConfigError`
        for what is neither.
        """
        return transfer.import_wholes(self.database, transfer.read_file(Path(path)))

    # Deleting

    def delete(self, trajectory_id: str) -> None:
        """Delete a trajectory, and the contents that no other one has.

        Raises `StoreError` where it is not there, still runs, or is being trained on.
        """
        self.trajectory(trajectory_id)
        if editing.delete_trajectories(self.database, [trajectory_id]).busy:
            raise StoreError(
                f"trajectory {trajectory_id} still runs, or a worker is training on its group: try again when that ends"
            )

    def prune(self, *, keep_rewarded: bool = False, **filters: Unpack[Filters]) -> Deleted:
        """Delete all that the filters find; `keep_rewarded` spares those with a reward.

        Raises `StoreError` without a filter: nobody deletes everything by leaving something out.
        """
        if all(value is None for value in filters.values()):
            raise StoreError("prune() needs a filter, such as until=: without one it would delete everything")
        if keep_rewarded:
            filters["rewarded"] = False
        return editing.delete_trajectories(self.database, (run.id for run in self.trajectories(**filters)))

    def vacuum(self) -> None:
        """Give the room of what was deleted back to the disk. SQLite writes the file anew for that, and nobody else
        can write meanwhile."""
        with self.database.unbound() as connection:
            connection.execute(text("VACUUM"))
