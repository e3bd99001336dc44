"""Which trajectories are meant: the filters of `Store.trajectories`, of deletion, of export and of the commands."""

from datetime import datetime
from typing import TypedDict

from sqlalchemy import ColumnElement, exists, select

from ..capture import spans as names
from ..errors import ConfigError
from . import tables as t


class Filters(TypedDict, total=False):
    """Each that is given, and is not None, must hold."""

    name: str | None
    """Of the function."""
    status: str | None
    policy: str | None
    """That is to learn from it, or that answered a call of it."""
    version: int | None
    """That answered a call of it: of `policy`, or of any where none is given."""
    min_reward: float | None
    max_reward: float | None
    rewarded: bool | None
    """Whether it has a reward."""
    since: datetime | None
    """Begun then or later. A time without a zone is local."""
    until: datetime | None
    """Begun before then."""
    tag: str | None
    tool: str | None
    """That was called."""
    error: str | None
    """How its error begins: the exception's type (`ValueError`)."""
    text: str | None
    """Words in a message, an argument or a result, in capitals or not. The contents are read for this: it is slow."""


def conditions(filters: Filters) -> list[ColumnElement[bool]]:
    """The filters in SQL, all but `text`. Raises `ConfigError` for a status that there is not."""
    c, k, s = t.trajectories.c, t.completions.c, t.spans.c
    given = {name: value for name, value in filters.items() if value is not None}
    if unknown := given.keys() - Filters.__annotations__:
        raise ConfigError(f"{min(unknown)} is no filter: they are {', '.join(Filters.__annotations__)}")
    found: list[ColumnElement[bool]] = []
    if (name := filters.get("name")) is not None:
        found.append(c.name == name)
    if (status := filters.get("status")) is not None:
        if status not in t.STATUSES:
            raise ConfigError(f"status={status!r}: expected one of {', '.join(t.STATUSES)}")
        found.append(c.status == status)
    policy = filters.get("policy")
    if (version := filters.get("version")) is not None:
        answered = select(k.trajectory_id).where(k.version == version)
        found.append(c.id.in_(answered if policy is None else answered.where(k.policy == policy)))
    elif policy is not None:
        found.append((c.policy == policy) | exists().where(k.trajectory_id == c.id, k.policy == policy))
    if (least := filters.get("min_reward")) is not None:
        found.append(c.reward >= least)
    if (most := filters.get("max_reward")) is not None:
        found.append(c.reward <= most)
    if (rewarded := filters.get("rewarded")) is not None:
        found.append(c.reward.is_not(None) if rewarded else c.reward.is_(None))
    if (since := filters.get("since")) is not None:
        found.append(c.started_at >= int(since.timestamp() * 1e9))
    if (until := filters.get("until")) is not None:
        found.append(c.started_at < int(until.timestamp() * 1e9))
    if (tag := filters.get("tag")) is not None:
        found.append(exists().where(t.tags.c.trajectory_id == c.id, t.tags.c.tag == tag))
    if (tool := filters.get("tool")) is not None:
        called = (s.operation == names.EXECUTE_TOOL) & (s.attributes[names.TOOL_NAME].as_string() == tool)
        found.append(exists().where(s.trajectory_id == c.id, called))
    if (error := filters.get("error")) is not None:
        found.append(c.error.startswith(error, autoescape=True))
    return found
