"""What the worker finds in the folder of its versions, and when a process is worth another start."""

from pathlib import Path

import pytest

from art_sdk.backend.local import may_restart
from art_sdk.backend.options import BackendOptions
from art_sdk.backend.worker import _set_aside_unrecorded
from art_sdk.errors import ConfigError


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


def test_a_process_that_keeps_dying_is_given_up() -> None:
    assert may_restart([0.0, 10.0, 20.0], 20.0)
    assert not may_restart([0.0, 10.0, 20.0, 30.0], 30.0)
    assert may_restart([0.0, 10.0, 20.0, 700.0], 700.0)
