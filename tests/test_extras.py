"""The command that installs what is missing, for a checkout and for a package from an index."""

import importlib.metadata
import json
import shlex
from pathlib import Path

import pytest

from art_sdk import extras
from art_sdk.errors import ConfigError


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ({"url": "file:///src/my%20art", "dir_info": {"editable": True}}, "/src/my art"),
        ({"url": "https://example.org/art.git", "vcs_info": {}}, "art-agent-sdk"),
        (None, "art-agent-sdk"),
    ],
)
def test_it_installs_from_where_this_was_installed_from(
    origin: dict[str, object] | None, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "art_agent_sdk-0.1.0.dist-info"
    folder.mkdir()
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))
    installed = importlib.metadata.PathDistribution(folder)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: installed)
    assert shlex.split(extras.install_command("postgres")) == ["pip", "install", f"{source}[postgres]"]


def test_the_cpu_engine_comes_with_the_index_of_its_torch_and_for_another_python_with_its_pip() -> None:
    command = shlex.split(extras.install_command("cpu", "/opt/python"))
    assert command[:4] == ["/opt/python", "-m", "pip", "install"]
    assert command[4] == "--extra-index-url"
    assert command[6].endswith("[cpu]")


@pytest.mark.parametrize("gpu", [True, False])
def test_a_missing_backend_is_named_with_the_extra_that_fits_the_machine(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "gpu_found", lambda: gpu)
    monkeypatch.setattr(extras, "_BACKEND", ("json", "no_such_package"))
    with pytest.raises(ConfigError, match=rf"\(no_such_package\)\. Run: pip install .*\[{'gpu' if gpu else 'cpu'}\]"):
        extras.require_backend()
