"""What only a server can do to a store: stop, and cut connections."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import postgres
import pytest

import art_sdk as art
from art_sdk.store import Store, open_store

from .build import cut_others, on_postgres

Stored = Callable[[], Store]


@art.trajectory
def handle(n: int) -> int:
    art.reward(1.0)
    return n


class TestAServerOfItsOwn:
    @pytest.fixture
    def own(self) -> Iterator[postgres.OwnPostgres]:
        with postgres.started() as running:
            yield running

    @pytest.fixture
    def store_url(self, own: postgres.OwnPostgres) -> str:
        return own.url(postgres.TEMPLATE)

    @pytest.mark.slow
    def test_what_is_captured_while_it_is_stopped_arrives_when_it_is_back(
        self, own: postgres.OwnPostgres, home: Path, store_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        handle(0)
        assert art.flush(10)
        own.stop()
        waits: list[float] = []
        until = time.monotonic() + 60
        while time.monotonic() < until:
            before = time.perf_counter()
            handle(len(waits) + 1)
            waits.append(time.perf_counter() - before)
            time.sleep(0.02)
        assert sorted(waits)[len(waits) // 2] < 0.02, "the agent must not wait for the store"
        assert art.flush(0.5) is False
        assert "failed" in str(art.health().store_error)
        assert len([r for r in caplog.records if "records wait in" in r.getMessage()]) == 1
        own.start()
        assert art.flush(30) is True
        with open_store(store_url) as store:
            assert sorted(run.output for run in store.trajectories()) == list(range(len(waits) + 1))
            assert {(run.status, run.reward) for run in store.trajectories()} == {("finished", 1.0)}
        assert "the trajectory store is back" in caplog.text

    @pytest.mark.slow
    def test_one_that_is_stopped_at_the_start_of_a_program_is_waited_for(
        self, own: postgres.OwnPostgres, home: Path, store_url: str
    ) -> None:
        own.stop()
        assert handle(3) == 3
        assert art.flush(0.5) is False
        own.start()
        assert art.flush(30) is True
        with open_store(store_url) as store:
            assert [run.output for run in store.trajectories()] == [3]


@on_postgres
def test_connections_that_are_cut_lose_nothing(stored: Stored, home: Path) -> None:
    store = stored()
    for n in range(20):
        handle(n)
        cut_others(store.database)
    assert sorted(run.output for run in stored().trajectories()) == list(range(20))
