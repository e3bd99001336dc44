"""What in a store doesn't agree with itself, and a copy of a store while it is in use."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, exists, func, select, text
from sqlalchemy.exc import DatabaseError

from ..errors import StoreError
from . import tables as t
from .database import Database


@dataclass(frozen=True)
class Fault:
    """`example` names one of the `count` rows or files."""

    what: str
    count: int
    example: str
    cure: str


def check(database: Database, home: Path | None = None) -> Iterator[Fault]:
    """What is inconsistent. `home`: the folder with the versions, where it is at hand.

    All rows are read once: minutes for a large store. Journals that are not drained yet explain what is only late.
    """
    if database.dialect == "sqlite":
        with database.unbound() as connection:  # a transaction could not be ended well
            damage = _damage(connection)
        if damage:
            cure = "restore the file from a backup, or save what can be read: sqlite3 art.db .recover"
            yield Fault("damage in the file", len(damage), damage[0], cure)
            return
    with database.snapshot() as connection:
        if database.dialect == "sqlite":
            yield from _broken_references(connection)
        for what, table, which, cure in _questions():
            count, example = _count(connection, table, which)
            if count:
                yield Fault(what, count, example, cure)
        versions = connection.execute(select(t.versions).where(t.versions.c.path.is_not(None))).all()
    gone = [v for v in versions if v.status != "rejected" and not Path(v.path).is_dir()]
    if gone:
        yield Fault("versions without files", len(gone), gone[0].path, "restore the folder, or serve a later version")
    if home is not None:
        known = {Path(version.path) for version in versions}
        strangers = sorted(p for p in home.glob("versions/*/*") if p.is_dir() and p not in known)
        if strangers:
            cure = "a worker that starts sets aside what a step left; of others, find the store that they belong to"
            yield Fault("folders of no version", len(strangers), str(strangers[0]), cure)


def _damage(connection: Connection) -> list[str]:
    try:
        said = list(connection.execute(text("PRAGMA integrity_check(10)")).scalars())
    except DatabaseError as error:
        return [str(error.orig)]
    return [] if said == ["ok"] else said


def _broken_references(connection: Connection) -> Iterator[Fault]:
    broken = connection.execute(text("PRAGMA foreign_key_check")).all()
    if broken:
        example = f"{broken[0][0]} refers to a row of {broken[0][2]} that is not there"
        yield Fault("references to nothing", len(broken), example, "report it: this should not happen")


_LATE = "nothing, if a journal still waits (art doctor); else its other half was lost, or deleted: art prune"


def _questions() -> Iterator[tuple[str, Table, ColumnElement[bool], str]]:
    c, k, h = t.trajectories.c, t.claims.c, t.holdings.c
    for table in (t.spans, t.rewards, t.completions):
        lost = table.c.trajectory_id.is_not(None) & ~exists().where(c.id == table.c.trajectory_id)
        yield f"{table.name} of no trajectory", table, lost, _LATE
    rootless = ~exists().where(t.spans.c.trajectory_id == c.id, t.spans.c.parent_id.is_(None))
    yield "trajectories without a root span", t.trajectories, rootless, _LATE
    parent = t.spans.alias()
    here = (parent.c.trajectory_id == t.spans.c.trajectory_id) & (parent.c.span_id == t.spans.c.parent_id)
    orphan = t.spans.c.parent_id.is_not(None) & ~exists().where(here)
    yield "spans under a span that is not there", t.spans, orphan, _LATE
    wanting = ~exists().where(t.contents.c.hash == h.hash)
    yield "contents that are missing", t.holdings, wanting, "report it: this should not happen"
    run_out = (k.status == "leased") & (k.expires_at < time.time_ns())
    yield "leases that ran out", t.claims, run_out, "start the policy's backend: its worker takes them up"
    groupless = c.group_id.is_not(None) & ~exists().where(t.groups.c.id == c.group_id)
    yield "trajectories of a group that is not there", t.trajectories, groupless, _LATE


def _count(connection: Connection, table: Table, which: ColumnElement[bool]) -> tuple[int, str]:
    key = list(table.primary_key.columns)
    count = connection.execute(select(func.count()).select_from(table).where(which)).scalar_one()
    row: Any = connection.execute(select(*key).where(which).limit(1)).first() if count else None
    return count, " ".join(map(str, row)) if row else ""


def backup(database: Database, path: Path) -> None:
    """Copy a SQLite store, as it is at one moment, into a new file that only its owner may read. Writers go on.

    Raises `StoreError` for Postgres, which has pg_dump, and for a file that is there already.
    """
    if database.dialect != "sqlite":
        raise StoreError("a Postgres store is backed up with Postgres's own tools, such as pg_dump")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise StoreError(f"can't write a backup to {path}: {error.strerror}") from error
    try:
        with database.unbound() as connection:
            connection.execute(text("VACUUM INTO :path"), {"path": str(path)})
    except BaseException:
        path.unlink(missing_ok=True)
        raise
