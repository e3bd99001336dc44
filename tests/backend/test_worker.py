"""What the worker finds in the folder of its versions, and what it says of a step that failed."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from art_sdk.backend.options import BackendOptions
from art_sdk.backend.worker import Worker, _set_aside_unrecorded, until_back
from art_sdk.errors import ConfigError, StoreError, TrainingError
from art_sdk.store import steps
from art_sdk.store.batch import ClaimedGroup, Member
from art_sdk.store.database import Database, RecordsRefused
from art_sdk.store.reasons import Reason

AWAY = StoreError("the store is away")


def options_in(home: Path) -> BackendOptions:
    return BackendOptions(
        policy="support", base_model="m", base_name="m", home=home, store_url="", gateway_port=1, engine_port=1
    )


def folders(home: Path, *names: str) -> dict[str, Path]:
    made = {name: options_in(home).versions_dir / name for name in names}
    for path in made.values():
        path.mkdir(parents=True)
    return made


def test_the_folder_of_a_step_that_was_never_recorded_is_set_aside(tmp_path: Path) -> None:
    made = folders(tmp_path, "000001", "000002", ".000002.5f3a")
    _set_aside_unrecorded(options_in(tmp_path), "sqlite:///x", {made["000001"]})
    assert [path.name for path in options_in(tmp_path).versions_dir.iterdir()] == ["000001"]
    assert len(list((tmp_path / "unrecorded").iterdir())) == 2


def test_versions_of_another_store_are_left_alone_and_named(tmp_path: Path) -> None:
    made = folders(tmp_path, "000001", "000002")
    with pytest.raises(ConfigError, match="000002 is a version that the store sqlite:///x does not know"):
        _set_aside_unrecorded(options_in(tmp_path), "sqlite:///x", set())
    assert all(path.is_dir() for path in made.values())


def test_training_goes_on_from_the_last_version_that_was_not_rejected_and_gives_no_number_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'art.db'}")
    steps.register_policy(database, "support", "m")
    made = folders(tmp_path, "000001", "000002")
    for number, path in enumerate(made.values(), 1):
        step = {"outcomes": (), "metrics": {}, "started_at": 1, "version": number, "path": path, "note": None}
        steps.record_step(database, "support", owner="w", groups=(), **step)  # type: ignore[arg-type]
    steps.reject(database, "support", 2, "its folder is broken")
    trainer = Mock()
    monkeypatch.setattr("art_sdk.backend.worker.Trainer", trainer)
    Worker(options_in(tmp_path), database)
    assert trainer.call_args.kwargs == {"resume": made["000001"], "given": 2}


def test_a_step_whose_loss_is_not_finite_says_what_was_claimed() -> None:
    class Broken:
        def step(self, groups: Any) -> None:
            raise TrainingError("loss is not finite")

    worker = Worker.__new__(Worker)
    worker._trainer = Broken()  # type: ignore[assignment]
    members = tuple(
        Member(name, "handle", "finished", reward, masked=False, completions=())
        for name, reward in (("a", 1.0), ("b", 0.0))
    )
    result = worker._learn([ClaimedGroup("g", "support", members)])
    assert (result.learned, result.why) == (False, "loss is not finite")
    assert {outcome.reason for outcome in result.outcomes} == {Reason.NOT_FINITE}
    assert result.metrics.keys() >= {"seconds", "trajectories", "calls", "tokens", "dense_tokens", "unique_tokens"}
    assert (result.metrics["groups"], result.metrics["reward_mean"], result.metrics["reward_std"]) == (1, 0.5, 0.5)


def test_a_trained_step_is_recorded_when_the_store_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("art_sdk.backend.worker._AWAY_SECONDS", 0.0)
    assert until_back(Mock(side_effect=[AWAY, AWAY, 7])) == 7
    assert len([r for r in caplog.records if "waiting until it is back" in r.getMessage()]) == 1
    monkeypatch.setattr("art_sdk.backend.worker._GIVE_UP_SECONDS", -1.0)
    with pytest.raises(StoreError, match="the disk is full"):
        until_back(Mock(side_effect=[StoreError("the disk is full"), 7]))
    with pytest.raises(RecordsRefused):
        until_back(Mock(side_effect=[RecordsRefused("it can't hold that"), 7]))
