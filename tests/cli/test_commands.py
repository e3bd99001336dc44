"""The commands that look into a store, on a store with one trajectory in it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import art_sdk as art
from art_sdk import cli
from art_sdk.store import Store, steps

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def trajectory_id(stored: Callable[[], Store]) -> str:
    @art.tool
    def look_up(order: str) -> str:
        return "lost"

    @art.trajectory(name="handle")
    def handle(ticket: str) -> str:
        art.reward(0.5)
        return look_up(ticket)

    handle("copper-willow")
    store = stored()
    steps.register_policy(store.database, "support", "/models/base")
    return next(store.trajectories()).id


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_traces_lists_trajectories_with_reward_and_standing(trajectory_id: str) -> None:
    output = run("traces")
    for part in (trajectory_id[:12], "handle", "finished", "0.5", "no policy"):
        assert part in output


def test_traces_shows_one_as_a_tree_by_the_start_of_its_id(trajectory_id: str) -> None:
    output = run("traces", trajectory_id[:8])
    for part in (trajectory_id, "copper-willow", "execute_tool look_up", "result: lost", "reward: 0.5"):
        assert part in output


def test_traces_filters(trajectory_id: str) -> None:
    assert trajectory_id[:12] not in run("traces", "--status", "failed")
    assert trajectory_id[:12] in run("traces", "--name", "handle")


def test_status_counts_what_was_captured(trajectory_id: str) -> None:
    output = run("status")
    assert "1 finished" in output
    assert "support@0" in output


def test_versions_lists_the_base_model_as_version_0(trajectory_id: str) -> None:
    output = run("versions", "support")
    assert "support@0" in output
    assert "live" in output


def test_doctor_says_what_is_installed() -> None:
    result = CliRunner().invoke(cli.app, ["doctor"], env={"COLUMNS": "200"})
    assert "torch" in result.output
    assert "python" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("traces", "--store", "sqlite:///{folder}/none.db"), "there is no trajectory store"),
        (("traces", "--store", "sqlite:///{folder}/text.db"), "file is not a database"),
        (("traces", "ffff"), "no trajectory"),
        (("up", "--base-model", "{folder}/none", "--policy", "p"), "neither a folder nor a model"),
        (("up", "--base-model", "{folder}", "--policy", "p"), "no config.json"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_without_a_traceback(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text.db").write_text("this is no database, only text\n" * 100)
    monkeypatch.setattr(sys, "argv", ["art", *(argument.format(folder=tmp_path) for argument in arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    error = " ".join(capsys.readouterr().err.split())
    assert said in error
    assert "Traceback" not in error
