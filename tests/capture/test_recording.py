"""A span of ours: what it keeps, when it is written, and that nothing of the user's OpenTelemetry is in its way."""

import enum
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import Status, StatusCode

import art_sdk as art
from art_sdk.capture import journal, spans
from art_sdk.capture.journal import frame, read_frames
from art_sdk.capture.recording import RecordingSpan
from art_sdk.capture.records import Content, Reward, SpanEnd, SpanStart
from art_sdk.store import Store

Stored = Callable[[], Store]
TRACE = "a" * 32


def written() -> list[Any]:
    found = journal.current()
    assert found is not None
    return [record for _, record in read_frames(found.path.read_bytes())]


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("words", "words"),
        ("a\0b\ud800", "a\\0b\\ud800"),
        (Colour.RED, "red"),
        (True, True),
        (7, 7),
        (1 << 70, str(1 << 70)),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (("a", "b\0"), ["a", "b\\0"]),
        ([1, None, 2], [1, 2]),
        (None, None),
        ({"no": "attribute"}, None),
        (b"bytes", None),
        (object(), None),
    ],
)
def test_an_attribute_is_kept_as_every_store_takes_it(given: Any, kept: Any, home: Path) -> None:
    span = RecordingSpan("name", TRACE, None, {"first": given})
    span.set_attribute("later", given)
    span.end()
    start, end = written()
    assert start.attributes == ({} if kept is None else {"first": kept})
    assert end.attributes == ({} if kept is None else {"first": kept, "later": kept})


def test_only_a_failure_is_a_status_and_events_are_not_kept(home: Path) -> None:
    for status in (Status(StatusCode.OK), Status(StatusCode.ERROR, "a\0b"), StatusCode.ERROR):
        span = RecordingSpan("name", TRACE, None, {})
        span.set_status(status)
        span.add_event("event")
        span.record_exception(ValueError("x"))
        span.update_name("other")
        span.end()
    assert [record.error for record in written() if isinstance(record, SpanEnd)] == [None, "a\\0b", "error"]
    assert written()[-1].name == "other"


def test_a_span_ends_once_and_takes_nothing_after(home: Path) -> None:
    span = RecordingSpan("name", TRACE, None, {})
    span.end(end_time=span.start_time + 5)
    span.set_attribute("late", 1)
    span.tell()
    span.end()
    assert not span.is_recording()
    start, end = written()
    assert isinstance(start, SpanStart)
    assert (end.ended_at - end.started_at, end.attributes) == (5, {})


def test_ids_do_not_repeat_when_random_is_seeded(home: Path) -> None:
    import random

    def made() -> str:
        random.seed(0)
        return RecordingSpan("name", TRACE, None, {}).span_id

    assert made() != made()


def test_a_forked_child_ends_no_span_of_its_parent_and_writes_nothing_that_it_held(home: Path) -> None:
    span = RecordingSpan("name", TRACE, None, {})
    journal.hold(Content("hash", b"held"))
    child = os.fork()
    if child == 0:
        span.end()
        journal.write_held()
        os._exit(len(list(home.glob("journal/*"))) - 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    span.end()
    assert [type(record) for record in written()] == [SpanStart, Content, SpanEnd]


# What is held


def test_what_is_held_is_written_with_the_next_record_and_before_it(home: Path) -> None:
    parent = RecordingSpan("run", TRACE, None, {})
    node = spans.start_span(spans.INVOKE_AGENT, "node", {}, parent)
    call = spans.start_span(spans.CHAT, "m", {}, node, held=True)
    assert [record.name for record in written()] == ["run"]
    call.tell()
    assert [record.name for record in written()] == ["run", "invoke_agent node", "chat m", "chat m"]
    call.end()
    node.end()
    assert isinstance(written()[-1], SpanEnd)
    assert written()[-1].name == "chat m"
    parent.end()
    assert [record.name for record in written()[-2:]] == ["invoke_agent node", "run"]


def test_a_node_in_which_nothing_happens_is_in_the_store_while_it_runs(stored: Stored) -> None:
    @art.trajectory
    def handle() -> list[str]:
        live = art.current_trajectory()
        spans.start_span(spans.INVOKE_AGENT, "node", {}, live.root)  # type: ignore[union-attr]
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = [span.name for run in stored().trajectories() for span in run.spans[1:]]
            if found:
                return found
            time.sleep(0.02)
        return []

    assert handle() == ["invoke_agent node"]


def test_what_another_thread_writes_of_mine_is_on_disk_when_my_record_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread is stopped between taking what I hold and writing it."""
    import threading

    journal.append(Reward("0" * 32, TRACE, None, "r", 1.0, "code", 1))
    taken, go_on = threading.Event(), threading.Event()
    let_go = journal._let_go

    def slowly() -> Any:
        frames = list(let_go())
        if threading.current_thread() is other:
            taken.set()
            go_on.wait(10)
        return iter(frames)

    monkeypatch.setattr(journal, "_let_go", slowly)
    other = threading.Thread(target=journal.write_held)
    mine = Content("mine", b"words")
    journal.hold(mine)
    other.start()
    assert taken.wait(10)
    threading.Timer(0.2, go_on.set).start()
    journal.append(Reward("1" * 32, TRACE, None, "r", 1.0, "code", 1))
    other.join()
    assert [getattr(record, "hash", None) for record in written()] == [None, "mine", None]
    assert frame(mine) in journal.current().path.read_bytes()  # type: ignore[union-attr]


def test_capture_does_without_the_sdk(tmp_path: Path) -> None:
    program = """
import sys
import art_sdk as art
@art.trajectory
def handle(): return look_up()
@art.tool
def look_up(): return 1
handle()
assert art.flush(30)
assert "opentelemetry.sdk.trace" not in sys.modules
"""
    environment = {**os.environ, "ART_HOME": str(tmp_path), "OTEL_SDK_DISABLED": "false"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, timeout=60)
