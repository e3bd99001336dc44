"""Trajectories out of a store and into one: JSON lines, Parquet, OTLP, preference pairs; and a store into another.

What we export has, beside what other tools read, the whole trajectory as rows and contents. So reading it again
gives the same trajectory, to the byte of each content. What training made of it (claims, outcomes) stays with the
store that trained; `copy` takes that along too.
"""

import base64
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, LargeBinary, func, insert, select

from ..capture import spans as names
from ..capture.content import hash_of, to_content
from ..errors import ArtError, ConfigError, StoreError
from ..extras import install_command
from ..integrations.messages import from_openai
from . import tables as t
from .apply import CONTENT_LOCK, insert_new
from .chat import to_openai_tool
from .database import Database
from .reading import Trajectory, pack_contents, parts, unpack_content

_AT_ONCE = 200
_FORMAT = 1


class Whole(msgspec.Struct, kw_only=True):
    """A trajectory as rows and contents. Packed arrays are base64, contents are JSON as they are stored."""

    format: int = _FORMAT
    trajectory: dict[str, Any]
    group: dict[str, Any] | None
    tags: list[str]
    spans: list[dict[str, Any]]
    rewards: list[dict[str, Any]]
    completions: list[dict[str, Any]]
    contents: dict[str, msgspec.Raw]


@dataclass(frozen=True)
class Imported:
    """`known` were in the store already and were left as they are."""

    trajectories: int
    known: int

    def __add__(self, other: "Imported") -> "Imported":
        return Imported(self.trajectories + other.trajectories, self.known + other.known)


# Out

_encode = msgspec.json.Encoder().encode


def export_jsonl(database: Database, trajectories: Iterable[Trajectory]) -> Iterator[bytes]:
    """A line for each: `messages` and `tools` in OpenAI's form, `reward`, and `art`, the whole."""
    for run, whole in _wholes(database, trajectories):
        yield _encode({**_summary(run), "messages": _chat(run), "tools": _tools(run), "art": whole}) + b"\n"


def export_preference(trajectories: Iterable[Trajectory]) -> Iterator[bytes]:
    """A line for each group of which two have different rewards: `prompt`, the messages that the best and the worst
    begin with, `chosen` and `rejected`, how they go on."""
    extremes: dict[str, tuple[Trajectory, Trajectory]] = {}
    for run in trajectories:
        if run.reward is not None and run.group_id is not None:
            worst, best = extremes.get(run.group_id, (run, run))
            extremes[run.group_id] = (min(run, worst, key=_reward), max(run, best, key=_reward))
    for worst, best in extremes.values():
        if worst.reward == best.reward:
            continue
        chosen, rejected = _chat(best), _chat(worst)
        shared = next((n for n, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
        if shared is None or not shared:
            continue  # one is the beginning of the other, or they were asked different things
        margin = _reward(best) - _reward(worst)
        line = {"prompt": chosen[:shared], "chosen": chosen[shared:], "rejected": rejected[shared:], "margin": margin}
        yield _encode(line | {"tools": _tools(best)}) + b"\n"


def export_otlp(database: Database, trajectories: Iterable[Trajectory]) -> Iterator[bytes]:
    """A line for each, an `ExportTraceServiceRequest` in OTLP's JSON: what collectors take. Each span has the GenAI
    attributes, the root also `art.whole`."""
    for run, whole in _wholes(database, trajectories):
        spans = [
            _otlp_span(span, {"art.whole": _encode(whole).decode()} if not span.parent_id else {}) for span in run.spans
        ]
        scope = {"scope": {"name": "art_sdk"}, "spans": spans}
        resource = {"attributes": [_otlp_attribute("service.name", run.name)]}
        yield _encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}) + b"\n"


def export_parquet(database: Database, trajectories: Iterable[Trajectory], path: Path) -> int:
    """One row for each: its summary, `messages` and `tools` as JSON, and `art`, the whole. Returns how many."""
    pyarrow, parquet = _pyarrow()
    schema = pyarrow.schema(
        [
            ("id", pyarrow.string()),
            ("name", pyarrow.string()),
            ("policy", pyarrow.string()),
            ("status", pyarrow.string()),
            ("started_at", pyarrow.timestamp("ns", "UTC")),
            ("reward", pyarrow.float64()),
            ("group_id", pyarrow.string()),
            ("tags", pyarrow.list_(pyarrow.string())),
            ("messages", pyarrow.string()),
            ("tools", pyarrow.string()),
            ("art", pyarrow.string()),
        ]
    )
    count = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for part in parts(_wholes(database, trajectories), _AT_ONCE):
            rows = [
                {
                    **_summary(run),
                    "messages": _encode(_chat(run)).decode(),
                    "tools": _encode(_tools(run)).decode(),
                    "art": _encode(whole).decode(),
                }
                for run, whole in part
            ]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            count += len(rows)
    return count


FORMATS = ("jsonl", "parquet", "otlp", "preference")


def export(database: Database, trajectories: Iterable[Trajectory], path: Path, form: str) -> int:
    """Write trajectories to a file, readable by its owner only; it appears when it is whole. Returns how many lines or
    rows it has."""
    if form not in FORMATS:
        raise ConfigError(f"export format {form!r}: expected one of {', '.join(FORMATS)}")
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    count = 0
    try:
        descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            if form == "parquet":
                count = export_parquet(database, trajectories, unfinished)
            else:
                if form == "jsonl":
                    lines = export_jsonl(database, trajectories)
                elif form == "otlp":
                    lines = export_otlp(database, trajectories)
                else:
                    lines = export_preference(trajectories)
                for line in lines:
                    file.write(line)
                    count += 1
        unfinished.rename(path)
    except OSError as error:
        raise StoreError(f"can't write {path}: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _summary(run: Trajectory) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "policy": run.policy,
        "status": run.status,
        "started_at": run.started_at,
        "reward": run.reward,
        "group_id": run.group_id,
        "tags": list(run.tags),
    }


def _chat(run: Trajectory) -> list[dict[str, Any]]:
    return run.messages("openai")


def _tools(run: Trajectory) -> list[dict[str, Any]]:
    return [to_openai_tool(tool) for tool in run.tools]


def _reward(run: Trajectory) -> float:
    return run.reward or 0.0


def _wholes(database: Database, trajectories: Iterable[Trajectory]) -> Iterator[tuple[Trajectory, Whole]]:
    for run in trajectories:
        with database.read() as connection:
            yield run, _whole(connection, run)


def _whole(connection: Connection, run: Trajectory) -> Whole:
    row = connection.execute(select(t.trajectories).where(t.trajectories.c.id == run.id)).mappings().one()
    group = connection.execute(select(t.groups).where(t.groups.c.id == run.group_id)).mappings().first()
    held = (
        select(t.contents)
        .join(t.holdings, t.holdings.c.hash == t.contents.c.hash)
        .where(t.holdings.c.trajectory_id == run.id)
        .order_by(t.contents.c.hash)
    )
    return Whole(
        trajectory=dict(row),
        group=dict(group) if group else None,
        tags=list(run.tags),
        contents={each.hash: msgspec.Raw(unpack_content(each.data)) for each in connection.execute(held)},
        spans=_rows(connection, t.spans, run.id),
        rewards=_rows(connection, t.rewards, run.id),
        completions=_rows(connection, t.completions, run.id),
    )


def _rows(connection: Connection, table: Any, trajectory_id: str) -> list[dict[str, Any]]:
    query = select(table).where(table.c.trajectory_id == trajectory_id).order_by(*table.primary_key.columns)
    return [
        {key: base64.b64encode(value).decode() if isinstance(value, bytes) else value for key, value in row.items()}
        for row in connection.execute(query).mappings()
    ]


def _otlp_span(span: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "traceId": span.trajectory_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id or "",
        "name": span.name,
        "kind": 3 if span.operation in names.LLM_OPERATIONS else 1,
        "startTimeUnixNano": str(span.started_at),
        "endTimeUnixNano": str(span.ended_at or span.started_at),
        "attributes": [_otlp_attribute(key, value) for key, value in {**span.attributes, **more}.items()],
        "status": {"code": 2, "message": span.error} if span.error else {"code": 0},
    }


def _otlp_attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": _otlp_value(value)}


def _otlp_value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case list() if all(isinstance(item, str | bool | int | float) for item in value):
            return {"arrayValue": {"values": [_otlp_value(item) for item in value]}}
        case _:  # messages and other structures: JSON, as the conventions say
            return {"stringValue": _encode(value).decode()}


# In


def read_file(path: Path) -> Iterator[Whole]:
    """The trajectories of an export of ours (JSON lines, OTLP, Parquet), or of a file of chats: lines with `messages`
    in OpenAI's form and, where there are, `tools`, `reward`, `name` and `tags`.

    Raises `ConfigError` that names the line for what is neither.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            yield from _read_parquet(path)
            return
        file.seek(0)
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield _read_line(line)
                except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ConfigError(
                        f"{path}, line {number}: expected an export of ours, or a chat as "
                        f'{{"messages": [{{"role": "user", "content": "…"}}, …]}}: {error}'
                    ) from error


def _read_line(line: bytes) -> Whole:
    found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    if "art" in found:
        return _decode_whole(bytes(found["art"]))
    if "resourceSpans" in found:
        for resource in msgspec.json.decode(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    for attribute in span["attributes"]:
                        if attribute["key"] == "art.whole":
                            return _decode_whole(attribute["value"]["stringValue"].encode())
        raise ValueError("these spans are no export of ours: none has the attribute art.whole")
    return _from_chat(msgspec.json.decode(line))


def _read_parquet(path: Path) -> Iterator[Whole]:
    pyarrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
        for batch in file.iter_batches(batch_size=_AT_ONCE, columns=["art"]):
            for value in batch.column("art").to_pylist():
                yield _decode_whole(value.encode())
    except (pyarrow.ArrowException, msgspec.DecodeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is no Parquet file that this library wrote: {error}") from error


def _decode_whole(data: bytes) -> Whole:
    whole = msgspec.json.decode(data, type=Whole)
    if whole.format != _FORMAT:
        raise ValueError(f"it has format {whole.format}, and this version reads {_FORMAT}: upgrade art-agent-sdk")
    for table in (t.trajectories, t.spans, t.rewards, t.completions):
        rows = [whole.trajectory] if table is t.trajectories else getattr(whole, table.name)
        if any(row.keys() != set(table.columns.keys()) for row in rows):
            raise ValueError(f"its {table.name} have other columns than this version's")
    whole.contents = {identity: _checked(identity, bytes(data)) for identity, data in whole.contents.items()}
    return whole


def _checked(identity: str, data: bytes) -> msgspec.Raw:
    """A content, which others may share, must be what its hash says. Another tool may have written its JSON anew."""
    for written in (data, _encode(msgspec.json.decode(data))):
        if hash_of(written) == identity:
            return msgspec.Raw(written)
    raise ValueError(f"content {identity} is not what its hash says: the file was changed")


def _from_chat(line: Any) -> Whole:
    """A chat as one LLM call for each message of the assistant, which is its answer."""
    messages = line["messages"]
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise ValueError("messages must be a list with at least one message")
    if (reward := line.get("reward")) is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise ValueError(f"reward must be a number, got {reward!r}")
    identity, root = uuid.uuid4().hex, uuid.uuid4().hex[:16]
    said = [from_openai(message) for message in messages]
    contents: dict[str, msgspec.Raw] = {}

    def keep(value: Any) -> str:
        content, _ = to_content(value)
        contents[content.hash] = msgspec.Raw(content.data)
        return content.hash

    kept = [keep(message) for message in said]
    tools = [keep(tool) for tool in line.get("tools") or ()]
    answers = [index for index, message in enumerate(said) if message["role"] == "assistant"]
    if not answers or answers[-1] < len(said) - 1:
        answers.append(len(said))  # what comes last was not answered
    calls: list[dict[str, Any]] = []
    asked: str | None = None
    for before, index in zip([0, *answers], answers, strict=False):
        asked = keep({"after": asked, "items": kept[before:index]})
        attributes: dict[str, Any] = {names.OPERATION: names.CHAT, names.INPUT_MESSAGES: asked}
        attributes[names.OUTPUT_MESSAGES] = kept[index : index + 1]
        calls.append(attributes | ({names.TOOL_DEFINITIONS: tools} if tools else {}))
    at = int(line.get("started_at") or 0)
    name = str(line.get("name") or "import")
    times = {"trajectory_id": identity, "started_at": at, "ended_at": at, "error": None, "response_id": None}
    rewards = []
    if reward is not None:
        rewards = [
            {
                "id": uuid.uuid4().hex,
                "trajectory_id": identity,
                "span_id": None,
                "name": "reward",
                "value": float(reward),
                "source": "import",
                "created_at": at,
            }
        ]
    return Whole(
        trajectory={
            "id": identity,
            "name": name,
            "policy": line.get("policy"),
            "status": "finished",
            "started_at": at,
            "ended_at": at,
            "input": None,
            "output": None,
            "error": None,
            "reward": None if reward is None else float(reward),
            "group_id": None,
            "task_key": None,
            "parent_id": None,
            "train": True,
            "excluded": False,
            "details": {},
            "journal": None,
        },
        group=None,
        tags=[str(tag) for tag in line.get("tags") or ()],
        spans=[
            times
            | {
                "span_id": root,
                "parent_id": None,
                "name": f"{names.INVOKE_AGENT} {name}",
                "operation": names.INVOKE_AGENT,
                "attributes": {names.OPERATION: names.INVOKE_AGENT},
            },
            *(
                times
                | {
                    "span_id": uuid.uuid4().hex[:16],
                    "parent_id": root,
                    "name": names.CHAT,
                    "operation": names.CHAT,
                    "started_at": at + number,
                    "ended_at": at + number,
                    "attributes": attributes,
                }
                for number, attributes in enumerate(calls, 1)
            ),
        ],
        rewards=rewards,
        completions=[],
        contents=contents,
    )


def import_wholes(database: Database, wholes: Iterable[Whole]) -> Imported:
    """Write trajectories into the store. They are not queued for training: their groups were another store's."""
    total = Imported(0, 0)
    for part in parts(wholes, _AT_ONCE):
        with database.write() as connection:
            total += _import(connection, part)
    return total


def _import(connection: Connection, wholes: Sequence[Whole]) -> Imported:
    c = t.trajectories.c
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock_shared({CONTENT_LOCK})")
    by_id = {whole.trajectory["id"]: whole for whole in wholes}
    known = set(connection.execute(select(c.id).where(c.id.in_(list(by_id)))).scalars())
    new = [whole for identity, whole in by_id.items() if identity not in known]
    groups = {whole.group["id"]: {**whole.group, "status": "ready", "check_at": None} for whole in new if whole.group}
    insert_new(connection, t.groups, list(groups.values()))
    contents = {each: bytes(data) for whole in new for each, data in whole.contents.items()}
    insert_new(connection, t.contents, [{"hash": h, "data": data} for h, data in pack_contents(contents)])
    holdings = [(whole.trajectory["id"], each) for whole in new for each in whole.contents]
    insert_new(connection, t.holdings, [{"trajectory_id": owner, "hash": each} for owner, each in holdings])
    insert_new(connection, t.trajectories, [_ended(whole.trajectory) for whole in new])
    for table in (t.spans, t.rewards, t.completions):
        binary = [column.name for column in table.columns if isinstance(column.type, LargeBinary)]
        rows = [dict(row) for whole in new for row in getattr(whole, table.name)]
        for row in rows:
            row.update({key: base64.b64decode(row[key]) for key in binary})
        insert_new(connection, table, rows)
    tags = [{"trajectory_id": whole.trajectory["id"], "tag": tag} for whole in new for tag in whole.tags]
    insert_new(connection, t.tags, tags)
    return Imported(len(new), len(wholes) - len(new))


def _ended(row: dict[str, Any]) -> dict[str, Any]:
    """Nobody goes on with it here."""
    return row | {"status": "abandoned"} if row["status"] == "running" else row


# A store into another


def copy(source: Database, target: Database, report: Callable[[str, int], None] = lambda *_: None) -> dict[str, int]:
    """Copy every row of a store into an empty one, from SQLite to Postgres or back: how many of each table.

    All is read as it was at one moment. Raises `StoreError` for a target that has rows, or is the source.
    """
    if source.url == target.url:
        raise StoreError(f"{source.name} can't be copied into itself: name another store")
    copied: dict[str, int] = {}
    with source.snapshot() as reading, target.write() as writing:
        for table in t.metadata.sorted_tables:
            if writing.execute(select(func.count()).select_from(select(table).limit(1).subquery())).scalar_one():
                raise StoreError(f"{target.name} is not empty, its table {table.name} has rows: name a new store")
        for table in t.metadata.sorted_tables:
            copied[table.name] = 0
            query = select(table).order_by(*table.primary_key.columns)
            rows = reading.execution_options(yield_per=_AT_ONCE).execute(query).mappings()
            for part in parts(rows, _AT_ONCE):
                writing.execute(insert(table), [dict(row) for row in part])
                copied[table.name] += len(part)
                report(table.name, copied[table.name])
    return copied


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ArtError(f"Parquet needs pyarrow. Run: {install_command('parquet')}") from error
    return pyarrow, pyarrow.parquet
