"""Reading the store: trajectories with their spans, messages and tokens."""

import json
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import zstandard
from sqlalchemy import Connection, RowMapping, func, select

from ..capture import spans as names
from ..capture.records import Completion
from ..errors import ConfigError
from . import tables as t
from .chat import FORMS, Form, to_anthropic, to_openai
from .database import Database
from .reasons import Reason

T = TypeVar("T")

_SHOWN = {
    names.INPUT_MESSAGES: "gen_ai.input.messages",
    names.OUTPUT_MESSAGES: "gen_ai.output.messages",
    names.TOOL_DEFINITIONS: "gen_ai.tool.definitions",
    names.TOOL_ARGUMENTS: "gen_ai.tool.call.arguments",
    names.TOOL_RESULT: "gen_ai.tool.call.result",
    names.INPUT: names.INPUT,
    names.OUTPUT: names.OUTPUT,
}
"""Attributes that hold hashes of content, and the names under which the content is shown."""


@dataclass(frozen=True)
class Span:
    """One operation. `attributes` has the conventions' names, messages included."""

    trajectory_id: str
    span_id: str
    parent_id: str | None
    name: str
    operation: str | None
    started_at: int
    ended_at: int | None
    error: str | None
    attributes: dict[str, Any] = field(repr=False)

    @property
    def seconds(self) -> float | None:
        return None if self.ended_at is None else (self.ended_at - self.started_at) / 1e9


@dataclass(frozen=True)
class ToolCall:
    """A tool call that a model asked for. `span` is its run; `result` what the next call was told.

    `state` is `ran`; `answered` where a result was sent back without a run that was seen, such as a framework's own
    "no such tool"; or `never ran`.
    """

    id: str
    name: str
    arguments: Any
    state: str
    result: Any
    asked_in: Span
    span: Span | None


@dataclass(frozen=True)
class Trajectory:
    """One run of an agent, as stored. Its parts are read when asked for."""

    id: str
    name: str
    policy: str | None
    status: str
    started_at: int
    ended_at: int | None
    reward: float | None
    error: str | None
    group_id: str | None
    parent_id: str | None
    train: bool
    excluded: bool
    details: dict[str, Any]
    _database: Database = field(repr=False, compare=False)
    _content: tuple[str | None, str | None] = field(repr=False, default=(None, None))

    @cached_property
    def input(self) -> Any:
        """The function's arguments, by name."""
        return self._resolved[0]

    @cached_property
    def output(self) -> Any:
        """What the function returned."""
        return self._resolved[1]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """In order of their start; the root is first."""
        with self._database.read() as connection:
            return read_spans(connection, self.id)

    @cached_property
    def completions(self) -> tuple[Completion, ...]:
        """What the engine sampled for it, in order of time."""
        with self._database.read() as connection:
            return read_completions(connection, [self.id])

    @cached_property
    def rewards(self) -> tuple[dict[str, Any], ...]:
        """Each reward record, in order of time."""
        query = select(t.rewards).where(t.rewards.c.trajectory_id == self.id).order_by(t.rewards.c.created_at)
        with self._database.read() as connection:
            return tuple(dict(row) for row in connection.execute(query).mappings())

    @cached_property
    def outcomes(self) -> tuple[dict[str, Any], ...]:
        """What training made of it: one entry per policy, with its reason or the tokens used."""
        query = select(t.outcomes).where(t.outcomes.c.trajectory_id == self.id)
        with self._database.read() as connection:
            return tuple(dict(row) for row in connection.execute(query).mappings())

    @cached_property
    def standing(self) -> str:
        """In a few words, what became of it in training, or what it waits for."""
        c = t.claims.c
        with self._database.read() as connection:
            claims = connection.execute(select(c.policy, c.status).where(c.group_id == self.group_id)).all()
        if self.outcomes:
            return ", ".join(
                o["reason"] or f"trained in {o['policy']}@{o['version']} ({o['tokens']} tokens)" for o in self.outcomes
            )
        if not self.train:
            return Reason.EVALUATION
        if self.excluded:
            return Reason.EXCLUDED
        if self.status == "running":
            return "running"
        if not claims:
            return "no policy: its calls did not go through a gateway"
        return {"waiting": "waits for its group", "ready": "waits for a step", "leased": "in a step"}.get(
            claims[0].status, "came after its group was trained"
        )

    @cached_property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls that its models asked for, in order, and what became of each."""
        runs = {
            span.attributes.get(names.TOOL_CALL_ID): span for span in self.spans if span.operation == "execute_tool"
        }
        answers: dict[str, Any] = {}
        asked: list[tuple[Span, dict[str, Any]]] = []
        for span in self.spans:
            for part in _parts(span, "gen_ai.input.messages", "tool_call_response"):
                answers.setdefault(part.get("id", ""), part.get("response"))
            asked += [(span, part) for part in _parts(span, "gen_ai.output.messages", "tool_call") if part.get("id")]
        found = []
        for span, part in asked:
            identity = part["id"]
            run = runs.get(identity)
            state = "ran" if run else "answered" if identity in answers else "never ran"
            result = run.attributes.get("gen_ai.tool.call.result") if run else answers.get(identity)
            found.append(ToolCall(identity, part.get("name", ""), part.get("arguments"), state, result, span, run))
        return tuple(found)

    def messages(self, form: Form = "genai") -> list[dict[str, Any]]:
        """The last LLM call's input and output: for a chat agent, the whole conversation.

        `form`: the GenAI conventions' (`genai`), or what OpenAI's `/chat/completions` (`openai`) or Anthropic's
        `/messages` (`anthropic`) takes.
        """
        if form not in FORMS:
            raise ConfigError(f"messages({form!r}): expected one of {', '.join(FORMS)}")
        calls = [span for span in self.spans if span.operation in names.LLM_OPERATIONS]
        if not calls:
            return []
        last = calls[-1].attributes
        said = [*last.get("gen_ai.input.messages", []), *last.get("gen_ai.output.messages", [])[:1]]
        return to_openai(said) if form == "openai" else to_anthropic(said) if form == "anthropic" else said

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the last LLM call could use, defined as that call's API does."""
        calls = [span for span in self.spans if span.operation in names.LLM_OPERATIONS]
        return list(calls[-1].attributes.get("gen_ai.tool.definitions", ())) if calls else []

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """What people call it, sorted."""
        query = select(t.tags.c.tag).where(t.tags.c.trajectory_id == self.id).order_by(t.tags.c.tag)
        with self._database.read() as connection:
            return tuple(connection.execute(query).scalars())

    @cached_property
    def _resolved(self) -> tuple[Any, Any]:
        wanted = [identity for identity in self._content if identity]
        with self._database.read() as connection:
            found = read_contents(connection, wanted)
        given, returned = self._content
        return found.get(given) if given else None, found.get(returned) if returned else None


def as_trajectory(database: Database, row: RowMapping) -> Trajectory:
    """A row of `trajectories`."""
    columns = {name: row[name] for name in Trajectory.__dataclass_fields__ if not name.startswith("_")}
    return Trajectory(**columns, _database=database, _content=(row["input"], row["output"]))


def read_spans(connection: Connection, trajectory_id: str) -> tuple[Span, ...]:
    """The spans of a trajectory with their content, in order of their start."""
    c = t.spans.c
    query = select(t.spans).where(c.trajectory_id == trajectory_id).order_by(c.started_at, c.parent_id.is_not(None))
    rows = connection.execute(query).mappings().all()
    hashes = {h for row in rows for key in _SHOWN for h in _hashes(row["attributes"].get(key))}
    contents = read_contents(connection, sorted(hashes))
    lists = {
        row["attributes"][key] for row in rows for key in names.LISTS if isinstance(row["attributes"].get(key), str)
    }
    while lists:  # each round finds the items of these lists, and the lists that they begin with
        links = [contents[h] for h in lists if isinstance(contents.get(h), dict)]
        lists = {link["after"] for link in links if link.get("after") and link["after"] not in contents}
        wanted = {item for link in links for item in link.get("items", ())} | lists
        contents |= read_contents(connection, sorted(wanted - contents.keys()))
    return tuple(
        Span(
            **{name: row[name] for name in Span.__dataclass_fields__ if name != "attributes"},
            attributes=_with_content(row["attributes"], contents),
        )
        for row in rows
    )


def _parts(span: Span, attribute: str, kind: str) -> Iterator[dict[str, Any]]:
    for message in span.attributes.get(attribute, ()):
        yield from (part for part in message.get("parts", ()) if part.get("type") == kind)


def _hashes(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value] if value else []


def _with_content(attributes: dict[str, Any], contents: dict[str, Any]) -> dict[str, Any]:
    shown = {}
    for key, value in attributes.items():
        if key in _SHOWN:
            found = [contents.get(h, {"missing": h}) for h in _written_out(value, contents)]
            shown[_SHOWN[key]] = found if isinstance(value, list) or key in names.LISTS else found[0]
        else:
            shown[key] = value
    return shown


def _written_out(value: Any, contents: dict[str, Any]) -> list[str]:
    """The hashes of a list that one hash may stand for: see `spans.content_attributes`."""
    if not isinstance(value, str):
        return _hashes(value)
    parts: list[list[str]] = []
    following: str | None = value
    while isinstance(found := contents.get(following or ""), dict) and found.keys() == {"after", "items"}:
        parts.append(found["items"])
        following = found["after"]
    return [item for part in reversed(parts) for item in part] if parts else [value]


def read_contents(connection: Connection, hashes: Sequence[str]) -> dict[str, Any]:
    """Content by hash, decoded."""
    found: dict[str, Any] = {}
    for chunk in chunks(hashes):
        query = select(t.contents).where(t.contents.c.hash.in_(chunk))
        found |= {row.hash: json.loads(unpack_content(row.data)) for row in connection.execute(query)}
    return found


_WORTH_PACKING = 256


_ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""How a Zstandard frame begins, an opening bracket first. No JSON does, nor with zlib's `x`, which earlier versions
wrote."""


class _Packer(threading.local):
    """A compressor may be used by one thread at a time."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=1).multi_compress_to_buffer


_packer = _Packer()


def pack_contents(contents: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """JSON by its hash, as the store keeps it: compressed where that is shorter. What is packed already stays as it is.
    All at once: Python's lock is free meanwhile."""
    found = dict(contents)
    long = [hash_ for hash_, data in found.items() if len(data) >= _WORTH_PACKING and not data.startswith(_ZSTANDARD)]
    if long:
        packed = _packer.compress([found[hash_] for hash_ in long])
        for index, hash_ in enumerate(long):
            segment = packed[index]
            if len(segment) < len(found[hash_]):
                found[hash_] = segment.tobytes()
    return list(found.items())


def unpack_content(data: bytes) -> bytes:
    if data.startswith(_ZSTANDARD):
        return zstandard.decompress(data)
    return zlib.decompress(data) if data[:1] == b"x" else data


def read_completions(
    connection: Connection, trajectory_ids: Iterable[str], policy: str | None = None
) -> tuple[Completion, ...]:
    """The completions of some trajectories, in order of time."""
    c = t.completions.c
    query = select(t.completions).where(c.trajectory_id.in_(list(trajectory_ids))).order_by(c.created_at, c.choice)
    if policy is not None:
        query = query.where(c.policy == policy)
    return tuple(
        Completion(
            **{
                **row,
                "prompt_ids": unpack("I", row["prompt_ids"]).tolist(),
                "token_ids": unpack("I", row["token_ids"]).tolist(),
                "logprobs": unpack("f", row["logprobs"]).tolist(),
            }
        )
        for row in connection.execute(query).mappings()
    )


def pack(code: str, values: Iterable[float]) -> bytes:
    """Numbers as little-endian u32 ("I") or f32 ("f")."""
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(code: str, data: bytes) -> "array[Any]":
    values = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def count_by_status(database: Database) -> dict[str, int]:
    """How many trajectories there are in each status."""
    c = t.trajectories.c
    with database.read() as connection:
        rows = connection.execute(select(c.status, func.count()).group_by(c.status)).all()
        return {row[0]: row[1] for row in rows}


def drained_positions(database: Database) -> dict[str, int]:
    """How far each journal file, by name, has been drained into the store."""
    with database.read() as connection:
        return {row.file: row.position for row in connection.execute(select(t.journals))}


def recent_faults(database: Database, seconds: float) -> list[dict[str, Any]]:
    """What the processes of the last `seconds` could not keep."""
    query = select(t.faults).where(t.faults.c.at > time.time_ns() - int(seconds * 1e9))
    with database.read() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def chunks(values: Sequence[str], size: int = 500) -> Iterable[list[str]]:
    """Databases bound the number of parameters of one statement."""
    return parts(values, size)


def parts(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Some of the values at a time."""
    iterator = iter(values)
    while part := list(islice(iterator, size)):
        yield part
