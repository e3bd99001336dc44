"""Set-up repairs what it can, and says in words what it can't."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with a `.venv` of its own."""
    spec = importlib.util.spec_from_file_location("setup", Path(__file__).parents[1] / "scripts" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    return module


def test_an_environment_that_was_left_half_made_is_made_anew(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, bool]] = []
    monkeypatch.setattr(setup.venv, "create", lambda _, **options: made.append(options))
    setup.make_venv()
    setup.PYTHON.parent.mkdir(parents=True)
    setup.PYTHON.write_text("#!/bin/sh\nexit 1\n")  # as it is without pip
    setup.make_venv()  # it can't be run
    setup.PYTHON.chmod(0o755)
    setup.make_venv()
    setup.PYTHON.unlink()
    setup.PYTHON.symlink_to(sys.executable)
    setup.make_venv()
    assert made == [{"with_pip": True, "clear": True}] * 3


def test_without_the_venv_module_it_says_what_to_install(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise subprocess.CalledProcessError(1, "ensurepip")

    monkeypatch.setattr(setup.venv, "create", fail)
    with pytest.raises(SystemExit, match="apt install python3-venv"):
        setup.make_venv()


@pytest.mark.parametrize(
    ("installable", "said"),
    [({"wheel"}, "PIP_EXTRA_INDEX_URL"), ({"wheel", "torch"}, "see above"), (set(), "see above")],
)
def test_a_missing_build_of_torch_is_told_from_a_missing_network(
    setup: Any, monkeypatch: pytest.MonkeyPatch, installable: set[str], said: str
) -> None:
    monkeypatch.setattr(setup, "make_venv", lambda: None)
    monkeypatch.setattr(setup, "pip", lambda *_, check=True: check)
    monkeypatch.setattr(setup, "can_install", lambda requirement: requirement.partition("==")[0] in installable)
    with pytest.raises(SystemExit, match=said):
        setup.main()


def test_make_sets_up_again_where_the_environments_python_is_gone(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    for file in ("Makefile", "pyproject.toml", "constraints.txt", "scripts/setup.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes((root / file).read_bytes())
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / ".venv" / "ready").touch()

    def make() -> str:
        return subprocess.run(["make", "-n", "setup"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert "setup.py" not in make()
    python.unlink()
    python.symlink_to(tmp_path / "gone")
    assert "python3 scripts/setup.py" in make()
