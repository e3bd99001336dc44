"""Several processes write about the same trajectories at the same time: nothing is missed between them."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import func, select

from art_sdk.capture import spans as names
from art_sdk.capture.journal import Journal
from art_sdk.capture.records import Record
from art_sdk.settings import Settings
from art_sdk.store import tables as t
from art_sdk.store.database import Database
from art_sdk.store.queue import queued
from art_sdk.store.writer import Writer

from .build import call, completion, end, group, identity, reward, start

pytestmark = pytest.mark.slow

TRAJECTORIES = 40


@pytest.fixture
def write_at_once(database: Database, tmp_path: Path) -> Callable[[Iterable[list[list[Record]]]], None]:
    """Each process is a list of batches. All write their first batch at the same time, then their second, …"""

    def write(processes: Iterable[list[list[Record]]]) -> None:
        programs = list(processes)
        barrier = Barrier(len(programs))

        def run(number: int) -> None:
            opened = Journal(tmp_path / f"journal{number}", 1 << 20)
            writer = Writer(opened, Settings(store_url=database.url, group_size=4, group_wait=60))
            writer.start()
            for batch in programs[number]:
                barrier.wait()
                opened.append(*batch)
                assert writer.flush(30)
            assert writer.stop(30)
            opened.close()
            writer.leave()

        with ThreadPoolExecutor(len(programs)) as pool:
            list(pool.map(run, range(len(programs))))

    return write


def numbers() -> range:
    return range(1, TRAJECTORIES + 1)


def test_rewards_from_several_processes_are_all_in_the_sum(
    database: Database, write_at_once: Callable[..., None]
) -> None:
    agent: list[list[Record]] = [[start(n), end(n)] for n in numbers()]
    judges: list[list[list[Record]]] = [[[reward(n, 0.25, key=judge)] for n in numbers()] for judge in range(3)]
    write_at_once([agent, *judges])
    with database.read() as connection:
        assert set(connection.execute(select(t.trajectories.c.reward)).scalars()) == {0.75}


def test_a_group_is_ready_whoever_brought_its_last_part(database: Database, write_at_once: Callable[..., None]) -> None:
    now = time.time_ns()

    def member(n: int) -> list[Record]:
        of_group = {names.GROUP_ID: identity(1000 + n // 2)}
        return [start(n, **of_group), call(n, f"r{n}"), end(n, **of_group)]

    pairs = [(n, n + 1) for n in range(2, 2 * TRAJECTORIES, 2)]
    programs: list[list[list[Record]]] = [
        [[group(1000 + a // 2, 2, now)] for a, _ in pairs],
        [[*member(a), reward(a)] for a, _ in pairs],
        [[*member(b), reward(b)] for _, b in pairs],
        [[completion(a, f"r{a}"), completion(b, f"r{b}")] for a, b in pairs],
    ]
    write_at_once(programs)
    assert queued(database, "support", now) == len(pairs)


def test_runs_of_one_task_fill_groups_of_the_right_size(database: Database, write_at_once: Callable[..., None]) -> None:
    """And none joins a group after it has become ready: it would never be trained on."""

    def run(n: int) -> list[Record]:
        task = {names.TASK_KEY: identity(7)}
        return [start(n, **task), end(n, **task), reward(n)]

    write_at_once([[run(n) for n in numbers() if n % 4 == process] for process in range(4)])
    with database.read() as connection:
        c = t.trajectories.c
        sizes = connection.execute(select(func.count(c.id)).group_by(c.group_id)).scalars().all()
    assert sizes == [4] * (TRAJECTORIES // 4)
    assert queued(database, "support", time.time_ns()) == TRAJECTORIES // 4
