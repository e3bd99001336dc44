"""What goes out of a store comes in again the same; what other tools read has the form that they expect."""

import base64
import json
import math
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import select

import art_sdk as art
from art_sdk.capture.records import Completion, Content, Record, Reward
from art_sdk.settings import Settings
from art_sdk.store import Store, steps, transfer
from art_sdk.store import tables as t
from art_sdk.store.batch import Outcome
from art_sdk.store.database import Database
from art_sdk.store.queue import claim

from .build import apply, call, completion, content, end, group, identity, on_sqlite, reward, start

Write = Callable[..., None]

CHAT = [
    {"role": "system", "content": "You are a desk."},
    {"role": "user", "content": "Where is copper-willow?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "copper-willow"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "lost"},
    {"role": "assistant", "content": "It is lost."},
]


@contextmanager
def new_store(template: Path) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(template, Path(folder) / "art.db")
        database = Database(f"sqlite:///{folder}/art.db")
        yield Store(database)
        database.close()


def wholes(store: Store) -> list[bytes]:
    """All that is exported, as bytes; the group's readiness is the store's own."""
    found = []
    for run in store.trajectories():
        with store.database.read() as connection:
            whole = transfer._whole(connection, run)
        if whole.group is not None:
            whole.group |= {"status": "", "check_at": None}
        found.append(msgspec.json.encode(whole))
    return found


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=400)
finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
singles = st.floats(width=32, max_value=0, allow_nan=False, allow_infinity=False)


@st.composite
def runs(draw: st.DrawFn, number: int) -> list[Record]:
    said = [content(draw(plain)) for _ in range(draw(st.integers(0, 4)))]
    said = [Content(each.hash, each.data, identity(number)) for each in said]
    in_group = {"art.group.id": identity(100 + number % 2)} if draw(st.booleans()) else {}
    attributes = {"art.metadata": json.dumps(draw(st.dictionaries(words, plain, max_size=2))), **in_group}
    tokens = draw(st.lists(st.integers(0, (1 << 32) - 1), max_size=5))
    made = Completion(
        response_id=f"r{number}",
        choice=draw(st.integers(0, 3)),
        policy=draw(words),
        version=draw(st.integers(0, 1 << 30)),
        prompt_ids=draw(st.lists(st.integers(0, (1 << 32) - 1), max_size=5)),
        token_ids=tokens,
        logprobs=[draw(singles) for _ in tokens],
        sampling=draw(st.dictionaries(words, plain, max_size=2)),
        finish_reason=draw(st.none() | words),
        created_at=draw(st.integers(0, 1 << 62)),
        trajectory_id=identity(number),
        span_id=None,
    )
    value = draw(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9))
    given = Reward(identity(1000 + number), identity(number), None, draw(words), value, draw(words), 5)
    return [
        *said,
        start(number, **attributes),
        call(number, f"r{number}", **{"art.input.messages": [each.hash for each in said], "user.word": draw(words)}),
        end(number, draw(st.sampled_from(["finished", "failed", "cancelled"])), **attributes),
        made,
        given,
        group(100 + number % 2, draw(st.integers(1, 9))),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "parquet", "otlp"])
@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.tuples(runs(1), runs(2)), tags=st.sets(words.filter(str.strip), max_size=3))
def test_what_is_exported_and_imported_is_the_same_to_the_byte(
    template: Path, form: str, records: tuple[list[Record], ...], tags: set[str]
) -> None:
    with new_store(template) as here, new_store(template) as there, tempfile.TemporaryDirectory() as folder:
        with here.database.write() as connection:
            flat = [record for each in records for record in each]
            apply(connection, flat, journal="a-1", settings=Settings(), now=10)
        here.tag(identity(1), *tags)
        file = Path(folder) / "out"
        assert here.export(file, form=form) == 2
        assert there.load(file) == transfer.Imported(2, 0)
        assert wholes(there) == wholes(here)
        assert there.load(file) == transfer.Imported(0, 2)
        for a, b in zip(here.trajectories(), there.trajectories(), strict=True):
            assert (a, a.input, a.spans, a.rewards, a.completions, a.tags) == (
                (b, b.input, b.spans, b.rewards, b.completions, b.tags)
            )


def test_an_export_goes_from_one_engine_to_the_other(
    database: Database, write: Write, tmp_path: Path, template: Path
) -> None:
    write(group(100, 1), start(1, **{"art.group.id": identity(100)}), call(1, "r1"), completion(1, "r1"), reward(1))
    write(end(1, **{"art.group.id": identity(100)}), start(2))
    here = Store(database)
    here.tag(identity(1), "good")
    assert here.export(tmp_path / "out.jsonl") == 2
    with new_store(template) as there:
        there.load(tmp_path / "out.jsonl")
        assert wholes(there)[1] == wholes(here)[1]
        assert there.trajectory(identity(2)).status == "abandoned"  # it was running: nobody goes on with it there
        there.export(tmp_path / "back.jsonl")
    for run in list(here.trajectories(status="finished")):
        here.delete(run.id)
    here.load(tmp_path / "back.jsonl")
    assert here.trajectory(identity(1)).tags == ("good",)


def test_what_is_imported_is_not_queued(database: Database, write: Write, tmp_path: Path, template: Path) -> None:
    in_group = {"art.group.id": identity(100)}
    write(group(100, 1), start(1, **in_group), completion(1, "r1"), reward(1), end(1, **in_group))
    Store(database).export(tmp_path / "out.jsonl")
    with new_store(template) as there:
        there.load(tmp_path / "out.jsonl")
        steps.register_policy(there.database, "support", "base")
        assert claim(there.database, "support", owner="worker", limit=9, lease_seconds=9) == []


@on_sqlite
def test_chats_become_trajectories_and_come_out_as_they_went_in(database: Database, tmp_path: Path) -> None:
    store = Store(database)
    tools = [{"type": "function", "function": {"name": "look_up", "description": "", "parameters": {"type": "object"}}}]
    lines: list[dict[str, Any]] = [
        {"messages": CHAT, "tools": tools, "reward": 0.5, "name": "desk", "tags": ["good"]},
        {"messages": CHAT[:2]},
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert store.load(tmp_path / "chats.jsonl") == transfer.Imported(2, 0)
    (run,) = store.trajectories(name="desk")
    assert (run.status, run.reward, run.tags) == ("finished", 0.5, ("good",))
    assert [(c.name, c.state, c.result) for c in run.tool_calls] == [("look_up", "answered", "lost")]
    assert [len(span.attributes["gen_ai.input.messages"]) for span in run.spans[1:]] == [2, 4]
    assert run.messages("openai") == CHAT
    assert store.export(tmp_path / "out.jsonl", name="desk") == 1
    line = json.loads((tmp_path / "out.jsonl").read_text())
    assert {key: line[key] for key in ("messages", "tools", "reward", "tags")} == {
        "messages": CHAT,
        "tools": tools,
        "reward": 0.5,
        "tags": ["good"],
    }


@on_sqlite
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"messages": []}', r"line 1: expected an export of ours, or a chat .* at least one message"),
        ('{"messages": [{"role": "user", "content": "a"}]}\n{"message": []}', "line 2: .*messages"),
        ('{"messages": "hello"}', "line 1: .*must be a list"),
        ('{"messages": [{"role": "user", "content": "a"}], "reward": "high"}', "line 1: .*reward must be a number"),
        ('{"art": {"format": 2}}', "line 1"),
        ('{"resourceSpans": []}', "line 1: .*art.whole"),
        ("not json", "line 1"),
        ('["a"]', "line 1"),
        ("PAR1 and no more", "is no Parquet file that this library wrote"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(database: Database, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "in").write_text(text)
    with pytest.raises(art.ConfigError, match=said):
        Store(database).load(tmp_path / "in")
    with pytest.raises(art.ConfigError, match="there is no file"):
        Store(database).load(tmp_path / "none")


@on_sqlite
def test_a_file_appears_whole_and_is_its_owners(database: Database, write: Write, tmp_path: Path) -> None:
    write(start(1), end(1))
    store = Store(database)
    store.export(tmp_path / "out.jsonl")
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o600
    with pytest.raises(art.ConfigError, match="expected one of jsonl, parquet, otlp, preference"):
        store.export(tmp_path / "out.csv", form="csv")
    with pytest.raises(art.StoreError, match=r"can't write .*No such file"):
        store.export(tmp_path / "none" / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out.jsonl"]


@on_sqlite
def test_the_best_and_the_worst_of_a_group_are_a_pair(database: Database, tmp_path: Path) -> None:
    store = Store(database)
    answers = {1: ("It is lost.", 1.0), 2: ("I don't know.", 0.0), 3: ("It may be lost.", 0.5)}
    lines = [
        {"messages": [*CHAT[:2], {"role": "assistant", "content": answer}], "reward": value, "name": str(n)}
        for n, (answer, value) in answers.items()
    ]
    (tmp_path / "in").write_text("\n".join(map(json.dumps, lines)))
    store.load(tmp_path / "in")
    assert store.export(tmp_path / "none", form="preference") == 0  # they are in no group
    with database.write() as connection:
        connection.execute(t.trajectories.update().values(group_id=identity(100)))
    assert store.export(tmp_path / "pairs", form="preference") == 1
    assert json.loads((tmp_path / "pairs").read_text()) == {
        "prompt": CHAT[:2],
        "chosen": [{"role": "assistant", "content": "It is lost."}],
        "rejected": [{"role": "assistant", "content": "I don't know."}],
        "margin": 1.0,
        "tools": [],
    }


@on_sqlite
def test_otlp_is_what_collectors_take(database: Database, write: Write, tmp_path: Path) -> None:
    from google.protobuf.json_format import Parse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    hello = content({"role": "user", "parts": [{"type": "text", "content": "hello"}]})
    attributes = {
        "art.input.messages": [hello.hash],
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.response.finish_reasons": ["stop"],
    }
    write(Content(hello.hash, hello.data, identity(1)), start(1), call(1, "r1", **attributes))
    write(end(1, "failed"))
    Store(database).export(tmp_path / "out", form="otlp")
    line = json.loads((tmp_path / "out").read_text())
    for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]:  # hex in OTLP's JSON, base64 in protobuf's own
        for key in ("traceId", "spanId", "parentSpanId"):
            span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    (resource,) = Parse(json.dumps(line), ExportTraceServiceRequest()).resource_spans
    root, chat = resource.scope_spans[0].spans
    assert root.trace_id.hex() == chat.trace_id.hex() == identity(1)
    assert chat.parent_span_id == root.span_id
    assert (root.status.code, root.status.message) == (2, "ValueError: no")
    found = {attribute.key: attribute.value for attribute in chat.attributes}
    assert json.loads(found["gen_ai.input.messages"].string_value)[0]["parts"][0]["content"] == "hello"
    assert found["gen_ai.usage.input_tokens"].int_value == 7
    assert [v.string_value for v in found["gen_ai.response.finish_reasons"].array_value.values] == ["stop"]


@pytest.mark.parametrize("back", [False, True])
def test_a_store_is_copied_row_by_row(
    database: Database, write: Write, template: Path, back: bool, request: Any
) -> None:
    in_group = {"art.group.id": identity(100)}
    write(group(100, 1), start(1, **in_group), call(1, "r1"), completion(1, "r1"), reward(1), end(1, **in_group))
    write(content({"a": "x" * 1000}), start(2), journal="b-2")
    steps.register_policy(database, "support", "base")
    claimed = claim(database, "support", owner="w", limit=1, lease_seconds=60)
    steps.record_step(
        database,
        "support",
        owner="w",
        groups=claimed,
        outcomes=[Outcome(identity(1), 2, 0.5)],
        metrics={"loss": math.pi},
        started_at=1,
        version=1,
        path=Path("/versions/1"),
        note=None,
    )
    Store(database).tag(identity(1), "good")

    def rows(of: Database) -> dict[str, list[Any]]:
        with of.read() as connection:
            return {
                table.name: [
                    tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key.columns))
                ]
                for table in t.metadata.sorted_tables
            }

    with new_store(template) as there:
        transfer.copy(database, there.database)
        assert rows(there.database) == rows(database)
        with pytest.raises(art.StoreError, match=r"is not empty, its table .* has rows: name a new store"):
            transfer.copy(there.database, database)
        if back:
            before = rows(database)
            for table in reversed(t.metadata.sorted_tables):
                with database.write() as connection:
                    connection.execute(table.delete())
            transfer.copy(there.database, database)
            assert rows(database) == before
    with pytest.raises(art.StoreError, match="can't be copied into itself"):
        transfer.copy(database, database)


@on_sqlite
def test_a_file_that_was_changed_is_told_from_one_that_was_only_written_anew(
    database: Database, write: Write, tmp_path: Path, template: Path
) -> None:
    said = content({"role": "user", "parts": [{"type": "text", "content": "hello"}], "of": [1.5, 1e20, None]})
    write(Content(said.hash, said.data, identity(1)), start(1), call(1, "r1"), end(1))
    Store(database).export(tmp_path / "out")
    line = json.loads((tmp_path / "out").read_text())
    with new_store(template) as there:
        (tmp_path / "anew").write_text(json.dumps(line, ensure_ascii=True))
        assert there.load(tmp_path / "anew") == transfer.Imported(1, 0)
        assert wholes(there) == wholes(Store(database))
        line["art"]["contents"][said.hash]["role"] = "system"
        (tmp_path / "changed").write_text(json.dumps(line))
        with pytest.raises(art.ConfigError, match=f"line 1: .*content {said.hash} is not what its hash says"):
            there.load(tmp_path / "changed")
        del line["art"]["spans"][0]["error"]
        (tmp_path / "changed").write_text(json.dumps(line))
        with pytest.raises(art.ConfigError, match=r"line 1: .*its spans have other columns"):
            there.load(tmp_path / "changed")
