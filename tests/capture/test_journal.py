"""The journal loses nothing that was appended: not to a crash, a fork, a torn write or corrupt bytes."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import art_sdk as art
from art_sdk.capture import journal as journals
from art_sdk.capture.journal import Journal, frame, read_frames
from art_sdk.capture.records import Completion, Content, Group, Record, Reward, SpanEnd, SpanStart, decode, encode
from art_sdk.store import Store

Stored = Callable[[], Store]

_names = st.text(max_size=20)
_times = st.integers(0, 2**63 - 1)
_attributes = st.dictionaries(_names, _names | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.lists(_names))
_ids = st.integers(0, 2**32 - 1)
records = st.one_of(
    st.builds(Content, hash=_names, data=st.binary(max_size=50)),
    st.builds(SpanStart, _names, _names, _names | st.none(), _names, _times, _attributes),
    st.builds(SpanEnd, _names, _names, _names | st.none(), _names, _times, _times, _attributes, _names | st.none()),
    st.builds(Reward, _names, _names, _names | st.none(), _names, st.floats(allow_nan=False), _names, _times),
    st.builds(
        Completion,
        response_id=_names,
        choice=st.integers(0, 9),
        policy=_names,
        version=st.integers(0, 9),
        prompt_ids=st.lists(_ids),
        token_ids=st.lists(_ids),
        logprobs=st.lists(st.floats(max_value=0, allow_nan=False)),
        sampling=_attributes,
        finish_reason=_names | st.none(),
        created_at=_times,
    ),
    st.builds(Group, _names, st.integers(1, 99), _times),
)


def reward(number: int) -> Reward:
    return Reward(f"{number:032x}", "a" * 32, None, "reward", float(number), "code", number)


def frames(*numbers: int) -> list[bytes]:
    return [frame(reward(number)) for number in numbers]


def read(data: bytes) -> list[Record | None]:
    return [record for _, record in read_frames(data)]


@settings(max_examples=50, deadline=None)
@given(records)
def test_a_record_survives_encoding(record: Record) -> None:
    assert decode(encode(record)) == [record]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(records, min_size=1, max_size=20), max_size=6))
def test_records_come_back_in_order_with_the_offsets_of_their_frames(written: list[list[Record]]) -> None:
    parts = [frame(*some) for some in written]
    found = list(read_frames(b"".join(parts)))
    assert [record for _, record in found] == [record for some in written for record in some]
    ends = [sum(map(len, parts[: n + 1])) for n in range(len(parts))]
    assert [end for end, _ in found] == [end for end, some in zip(ends, written, strict=True) for _ in some]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_corrupt_bytes_cost_only_the_frames_that_they_are_in(data: st.DataObject) -> None:
    parts = frames(*range(6))
    whole = bytearray(b"".join(parts))
    hit = set()
    for _ in range(data.draw(st.integers(1, 5))):
        position = data.draw(st.integers(0, len(whole) - 1))
        whole[position] ^= data.draw(st.integers(1, 255))
        hit.add(position // len(parts[0]))  # all frames are equally long
    found = [record for record in read(bytes(whole)) if record is not None]
    surviving = [reward(number) for number in range(6) if number not in hit]
    assert [record for record in found if record in surviving] == surviving
    # Two hits on one byte may undo each other.
    assert len(found) <= 6


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_torn_tail_waits_for_the_rest(data: st.DataObject) -> None:
    whole = b"".join(frames(1, 2, 3))
    cut = data.draw(st.integers(0, len(whole)))
    complete = cut // len(frames(1)[0])
    assert read(whole[:cut]) == [reward(n + 1) for n in range(complete)]


def test_a_torn_frame_before_others_is_skipped() -> None:
    first, second, third = frames(1, 2, 3)
    assert read(first + second[:30] + third) == [reward(1), None, reward(3)]


def test_a_length_that_reaches_beyond_the_file_costs_one_frame() -> None:
    first, second = frames(1, 2)
    assert read(first[:4] + b"\xff\xff\xff\x7f" + first[8:] + second) == [None, reward(2)]


def test_a_record_of_an_unknown_kind_is_skipped() -> None:
    import msgspec

    class Later(msgspec.Struct, tag="later"):
        x: int

    (known,) = frames(1)
    assert read(frame(Later(1)) + known) == [None, reward(1)]  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [15, 16, 300])
def test_of_many_in_a_frame_the_unknown_one_alone_is_skipped(count: int) -> None:
    import msgspec

    class Later(msgspec.Struct, tag="later"):
        x: int

    written: list[Any] = [reward(number) for number in range(count)]
    written[7] = Later(1)
    expected = [None if number == 7 else reward(number) for number in range(count)]
    assert read(frame(*written)) == expected


def test_the_magic_inside_a_payload_is_no_frame() -> None:
    content = Content("a" * 32, b"".join(frames(7)))
    assert read(frame(content) + frame(reward(1))) == [content, reward(1)]


# The file


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    opened = Journal(tmp_path / "journal", segment_bytes=1000)
    yield opened
    opened.close()


def test_files_and_folder_are_their_owners_alone(journal: Journal) -> None:
    assert journal.directory.stat().st_mode & 0o777 == 0o700
    assert journal.path.stat().st_mode & 0o777 == 0o600


def test_a_full_segment_is_followed_by_the_next(journal: Journal) -> None:
    for number in range(50):
        journal.append(reward(number))
    segments = sorted(journal.directory.iterdir())
    assert len(segments) > 3
    assert all(segment.stat().st_size <= 1000 for segment in segments)
    assert read(b"".join(segment.read_bytes() for segment in segments)) == [reward(n) for n in range(50)]
    assert [re.sub(r".*-", "", segment.name) for segment in segments[:2]] == ["0000.journal", "0001.journal"]


def test_a_record_larger_than_a_segment_is_written_whole(journal: Journal) -> None:
    content = Content("a" * 32, b"x" * 5000)
    journal.append(reward(1))
    journal.append(content)
    journal.append(reward(2))
    assert read(b"".join(p.read_bytes() for p in sorted(journal.directory.iterdir()))) == [
        reward(1),
        content,
        reward(2),
    ]


def test_every_segment_stays_locked_until_it_is_drained(journal: Journal) -> None:
    import fcntl

    for number in range(30):
        journal.append(reward(number))

    def lockable(path: Path) -> bool:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    first, *others = sorted(journal.directory.iterdir())
    assert not any(map(lockable, [first, *others]))
    journal.drained(first)
    assert lockable(first)
    assert not any(map(lockable, others))


def test_threads_do_not_tear_each_others_records(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", segment_bytes=20_000)

    def write(start: int) -> None:
        for number in range(start, start + 200):
            journal.append(reward(number))

    threads = [threading.Thread(target=write, args=(start,)) for start in range(0, 1000, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    found = read(b"".join(path.read_bytes() for path in sorted(journal.directory.iterdir())))
    assert sorted(record.id for record in found) == [reward(n).id for n in range(1000)]  # type: ignore[union-attr]


def test_a_full_disk_counts_what_it_refused_and_says_so_once(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal.append(reward(1))

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", refuse)
        journal.append(reward(2), reward(3))
        journal.append(reward(4))
    journal.append(reward(5))
    assert journal.dropped == 3
    assert [record.getMessage() for record in caplog.records if "No space left on device" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]
    assert read(journal.path.read_bytes()) == [reward(1), reward(5)]


def test_a_short_write_costs_its_own_record_only(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
        journal.append(reward(1))
    journal.append(reward(2))
    assert journal.dropped == 1
    assert read(journal.path.read_bytes()) == [None, reward(2)]


def test_where_no_new_segment_can_be_opened_nothing_goes_astray(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append(*map(reward, range(8)))
    with monkeypatch.context() as disk:
        disk.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "too many open files")))
        journal.append(reward(8))
    journal.append(reward(9))
    assert journal.dropped == 1
    written = b"".join(path.read_bytes() for path in sorted(journal.directory.glob("*.journal")))
    assert read(written) == [*map(reward, range(8)), reward(9)]


def test_a_closed_journal_writes_to_no_descriptor_of_others(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", segment_bytes=1000)
    descriptor = journal._fd
    journal.close()
    other = os.open(tmp_path / "theirs", os.O_CREAT | os.O_WRONLY)
    try:
        assert other == descriptor, "this test needs the number to be used again"
        assert not journal.append(reward(1))
        assert (tmp_path / "theirs").read_bytes() == b""
    finally:
        os.close(other)


def test_a_disk_that_fills_up_breaks_no_agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @art.trajectory(reward=lambda result: 1.0)
    def handle() -> str:
        return "fine"

    handle()

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", refuse)
        assert handle() == "fine"
    opened = journals.current()
    assert opened is not None
    assert opened.dropped > 0


# Processes


def test_a_forked_child_writes_a_file_of_its_own(stored: Stored, home: Path) -> None:
    @art.trajectory
    def handle(who: str) -> None:
        art.reward(1.0)

    handle("parent")
    mine = journals.current()
    assert mine is not None
    child = os.fork()
    if child == 0:  # in the child: leave without running pytest's clean-up
        try:
            handle("child")
            theirs = journals.current()
            same = theirs is None or theirs.path == mine.path or not theirs.path.exists()
            os._exit(1 if same or not art.shutdown(10) else 0)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    handle("parent again")
    runs = {run.input["who"]: run for run in stored().trajectories()}
    assert set(runs) == {"parent", "child", "parent again"}
    assert {(run.status, run.reward) for run in runs.values()} == {("finished", 1.0)}


def test_what_a_forked_child_leaves_is_drained_by_its_parent(
    stored: Stored, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_sdk.store.writer._ORPHANS_SECONDS", 0.0)

    @art.trajectory
    def handle(who: str) -> None: ...

    handle("parent")
    child = os.fork()
    if child == 0:
        handle("child")
        os._exit(0)
    os.waitpid(child, 0)
    assert {run.input["who"] for run in stored().trajectories()} == {"parent", "child"}


_KILLED = """
import os, signal, sys
import art_sdk as art

@art.tool
def step(n): return n * 10

@art.trajectory(policy="support")
def handle(ticket):
    for n in range(int(sys.argv[1])):
        step(n)
    art.reward(0.5)
    os.kill(os.getpid(), signal.SIGKILL)

@art.trajectory
def before(): return "done"

before()
handle("help")
"""


def test_nothing_that_returned_before_a_kill_9_is_lost(home: Path, stored: Stored) -> None:
    code = _KILLED
    done = subprocess.run(
        [sys.executable, "-c", code, "50"], env=os.environ | {"ART_HOME": str(home)}, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list((home / "journal").glob("*.journal"))
    art.reward(0.25, trajectory_id="f" * 32)  # anything that makes this process open its journal
    store = stored()
    (killed,) = store.trajectories(name="handle")
    assert (killed.status, killed.reward, killed.input) == ("abandoned", 0.5, {"ticket": "help"})
    steps = killed.spans[1:]
    assert [span.attributes["gen_ai.tool.call.result"] for span in steps] == [n * 10 for n in range(50)]
    assert all(span.ended_at for span in steps)
    (finished,) = store.trajectories(name="before")
    assert (finished.status, finished.output) == ("finished", "done")
    assert len(list((home / "journal").glob("*.journal"))) == 1


def test_the_journal_of_a_living_process_is_left_to_it(home: Path, stored: Stored) -> None:
    code = """
import sys
import art_sdk as art
from art_sdk import lifecycle
from art_sdk.capture import journal
journal._on_open.clear()  # a process whose writer is not running
@art.trajectory
def handle():
    print("inside", flush=True)
    sys.stdin.readline()
handle()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"ART_HOME": str(home), "ART_JOURNAL_SEGMENT_BYTES": "4096"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "inside\n"
        (theirs,) = (home / "journal").glob("*.journal")
        art.reward(1.0, trajectory_id="f" * 32)
        assert list(stored().trajectories()) == []
        assert theirs.exists()
        other.stdin.write("\n")
        other.stdin.close()
        assert other.wait(10) == 0
