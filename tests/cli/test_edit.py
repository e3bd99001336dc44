"""The commands that change a store: labels, deletion, export and import, copy, check and backup."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import art_sdk as art
from art_sdk import cli
from art_sdk.cli.edit import age
from art_sdk.store import Store, open_store

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def ids(stored: Callable[[], Store]) -> list[str]:
    """Two trajectories, oldest first; the second has a reward."""

    @art.trajectory(name="handle")
    def handle(ticket: str) -> str:
        if ticket == "maple":
            art.reward(0.5)
        return "lost"

    handle("copper")
    handle("maple")
    return [run.id for run in stored().trajectories()][::-1]


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def fails(*arguments: Any) -> str:
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments])
    assert result.exit_code != 0
    return f"{result.output}{result.exception}"


def test_label(ids: list[str]) -> None:
    said = run("label", ids[0], "--reward", "0.25", "--tag", "a", "--tag", "b", "--untag", "a", "--exclude")
    assert "reward 0.25, tags b, excluded" in said
    assert "excluded" not in run("label", ids[0], "--include")
    assert ids[0][:12] in run("traces", "--tag", "b")
    assert ids[1][:12] not in run("traces", "--tag", "b")
    assert "say what to do" in fails("label", ids[0])
    assert "no trajectory" in fails("label", "ffff", "--tag", "a")


def test_delete_and_prune(ids: list[str]) -> None:
    assert "0 trajectories would be deleted" in run("prune", "--older-than", "1d", "--dry-run")
    assert "1 trajectories would be deleted" in run("prune", "--name", "handle", "--keep-rewarded", "--dry-run")
    assert "1 trajectories deleted" in run("prune", "--text", "COPPER", "--keep-rewarded", "--vacuum")
    assert "no trajectory" in fails("delete", ids[0])
    assert "is deleted" in run("delete", ids[1][:10])
    assert "no trajectories yet" in run("traces")
    assert "needs a filter" in fails("prune", "--keep-rewarded")
    assert "'month' is no age: write a number and m, h, d or w" in fails("prune", "--older-than", "month")


def test_ages() -> None:
    assert [age(words) for words in ("90m", "12h", "30d", "2w")] == [
        timedelta(minutes=90),
        timedelta(hours=12),
        timedelta(days=30),
        timedelta(days=14),
    ]


def test_export_and_import(ids: list[str], tmp_path: Path) -> None:
    assert "2 trajectories in" in run("export", tmp_path / "all.jsonl")
    assert "1 trajectories in" in run("export", tmp_path / "good.parquet", "--min-reward", "0.5")
    assert "(otlp)" in run("export", tmp_path / "spans.json", "--format", "otlp", "--limit", "1")
    assert "0 pairs in" in run("export", tmp_path / "pairs.jsonl", "--format", "preference")
    new = f"sqlite:///{tmp_path}/new/art.db"
    assert "1 trajectories imported" in run("import", tmp_path / "good.parquet", "--store", new)
    assert "1 trajectories imported into" in (said := run("import", tmp_path / "all.jsonl", "--store", new))
    assert "1 were there already" in said
    with open_store(new) as store:
        assert [found.id for found in store.trajectories()] == ids[::-1]
    assert [json.loads(line)["reward"] for line in (tmp_path / "all.jsonl").read_text().splitlines()] == [0.5, None]


def test_copy_check_upgrade_and_backup(ids: list[str], home: Path, tmp_path: Path) -> None:
    old, new = f"sqlite:///{home}/art.db", f"sqlite:///{tmp_path}/new/art.db"
    assert "2 trajectories" in run("copy", old, new)
    assert "is not empty" in fails("copy", old, new)
    assert "the same store" in fails("copy", old, old)
    assert "there is no trajectory store" in fails(
        "copy", f"sqlite:///{tmp_path}/none.db", f"sqlite:///{tmp_path}/x.db"
    )
    assert "is consistent" in run("db", "check", "--store", new)
    assert re.search("has schema [0-9]{4}", run("db", "upgrade", "--store", new))
    assert "MB" in run("db", "backup", tmp_path / "copy.db")
    assert "File exists" in fails("db", "backup", tmp_path / "copy.db")
    with open_store(f"sqlite:///{tmp_path}/copy.db") as copied:
        assert [found.id for found in copied.trajectories()] == ids[::-1]
        copied.database.engine.dispose()
        with copied.database.write() as connection:
            connection.exec_driver_sql("DELETE FROM contents")
    said = fails("db", "check", "--store", f"sqlite:///{tmp_path}/copy.db")
    assert "contents that are missing" in said
    assert "→" in said
