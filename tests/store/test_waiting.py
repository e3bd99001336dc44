"""A worker that waits is woken by what makes a group ready, not by asking."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from art_sdk.store.database import Database
from art_sdk.store.queue import claim, queued, release
from art_sdk.store.waiting import Changes

from .build import completion, cut_others, end, group, identity, on_postgres, reward, start

Write = Callable[..., None]


@pytest.fixture
def changes(database: Database) -> Iterator[Changes]:
    opened = Changes(Database(database.url))
    opened.wait(60)  # the first only begins to listen
    yield opened
    opened.close()
    opened._database.close()


def woken_by(changes: Changes, act: Callable[[], None]) -> bool:
    """Whether a wait of ten minutes ends after `act`."""
    waiting = threading.Thread(target=changes.wait, args=(600,), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive(), "it returned before anything had happened"
    act()
    waiting.join(30)
    return not waiting.is_alive()


def ready_group(write: Write) -> None:
    of_group = {"art.group.id": identity(90)}
    write(group(90, 1, time.time_ns()), start(1, **of_group), completion(1, "r1"), reward(1))
    write(end(1, **of_group))


def test_a_group_that_becomes_ready_ends_the_wait(database: Database, write: Write, changes: Changes) -> None:
    assert woken_by(changes, lambda: ready_group(write))
    assert queued(database, "support", time.time_ns()) == 1


def test_a_group_that_is_given_back_ends_the_wait(database: Database, write: Write, changes: Changes) -> None:
    ready_group(write)
    claim(database, "support", owner="a", limit=1, lease_seconds=600)
    changes.wait(0)
    while queued(database, "support", time.time_ns()):
        changes.wait(0)
    changes.wait(0.1)
    assert woken_by(changes, lambda: release(database, "support", owner="a"))


def test_a_group_that_time_makes_ready_ends_the_wait(database: Database, write: Write, changes: Changes) -> None:
    task = {"art.task.key": identity(7)}
    write(start(1, **task), completion(1, "r1"), reward(1), end(1, **task), group_wait=0.5)
    waiting = threading.Thread(target=lambda: [changes.wait(600) for _ in range(3)], daemon=True)
    waiting.start()
    waiting.join(30)
    assert not waiting.is_alive()


def test_without_a_change_it_waits(changes: Changes) -> None:
    before = time.monotonic()
    changes.wait(0.3)
    assert time.monotonic() - before >= 0.3


@on_postgres
def test_a_connection_that_is_cut_is_made_again(database: Database, write: Write, changes: Changes) -> None:
    assert woken_by(changes, lambda: cut_others(database))
    changes.wait(60)
    assert woken_by(changes, lambda: ready_group(write))
