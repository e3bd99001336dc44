"""The tables of the docs say what the code says."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
import pytest
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import art_sdk as art
from art_sdk.cli import app
from art_sdk.settings import Settings
from art_sdk.store import reading, tables
from art_sdk.store.reasons import Reason
from art_sdk.training import step
from art_sdk.training.options import LoraOptions, TrainingOptions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(DOCS.rglob("*.md"))
CONFIGURATION = (DOCS / "configuration.md").read_text()


def rows(page: str, *header: str) -> list[list[str]]:
    """The cells of the rows of the table with this header, without the backticks around a whole cell."""
    start = page.index("\n| " + " | ".join(header) + " |\n")
    lines = page[start:].strip().splitlines()
    table = lines[2 : next((n for n, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[re.sub(r"^`([^`]*)`$", r"\1", cell.strip()) for cell in line.strip("|").split("|")] for line in table]


def section(title: str) -> str:
    return CONFIGURATION.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def allowed(field: FieldInfo) -> str:
    """The values that a field takes, as the tables write them."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        if isinstance(bound, annotated_types.BaseMetadata)
        for name, sign in signs.items()
        if hasattr(bound, name)
    ]
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{value!r}`" for value in get_args(field.annotation))
    return ", ".join(bounds)


def test_the_environment_variables() -> None:
    documented = {row[0]: row[1:3] for row in rows(CONFIGURATION, "variable", "default", "allowed", "meaning")}
    assert documented == {
        f"ART_{name.upper()}": ["unset" if field.default in (None, "") else str(field.default), allowed(field)]
        for name, field in Settings.model_fields.items()
    }


def test_every_variable_that_the_code_reads_is_named() -> None:
    used: set[str] = set()
    for file in (ROOT / "art_sdk").rglob("*.py"):
        used.update(re.findall(r"\bART_[A-Z_]+\b", file.read_text()))
    assert used <= set(re.findall(r"\bART_[A-Z_]+\b", CONFIGURATION))


@pytest.mark.parametrize("options", [LoraOptions, TrainingOptions])
def test_the_options(options: type[BaseModel]) -> None:
    table = rows(section(options.__name__), "field", "default", "allowed", "meaning")
    documented = {row[0]: [row[1], row[2].replace("`", "")] for row in table}
    assert documented == {
        name: [repr(field.default), allowed(field).replace("`", "")] for name, field in options.model_fields.items()
    }


def test_the_arguments_of_the_backend() -> None:
    documented = {row[0]: row[1] for row in rows(section("LocalBackend"), "argument", "default", "meaning")}
    parameters = inspect.signature(art.LocalBackend).parameters.values()
    assert documented == {p.name: default(p.default) for p in parameters}


def default(value: Any) -> str:
    return "required" if value is inspect.Parameter.empty else repr(value)


def test_the_commands_and_their_flags() -> None:
    commands = dict(commands_of(typer.main.get_command(app), "art"))
    named = [row[0] for row in rows(CONFIGURATION, "command", "does")]
    assert sorted(named) == sorted(commands)
    flags = [tuple(row) for row in rows(CONFIGURATION, "command", "flag", "default")]
    assert sorted(flags) == sorted(
        (name, parameter.opts[0], flag_default(parameter))
        for name, command in commands.items()
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name != "help"
    )


def commands_of(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command by the words that call it."""
    for word, below in command.commands.items():
        if hasattr(below, "commands"):
            yield from commands_of(below, f"{name} {word}")
        else:
            yield f"{name} {word}", below


def flag_default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    return "unset" if parameter.default is None else str(parameter.default)


def test_the_reasons() -> None:
    page = (DOCS / "getting-started.md").read_text()
    assert [row[0] for row in rows(page, "reason", "what it says", "what to do")] == list(Reason)


def test_the_other_words_of_art_traces() -> None:
    page = (DOCS / "getting-started.md").read_text()
    source = inspect.getsource(reading.Trajectory)
    for row in rows(page, "words", "meaning"):
        assert f'"{row[0]}"' in source or f'f"{row[0]} ' in source, row[0]


def test_the_metrics_are_those_of_a_step() -> None:
    page = (DOCS / "concepts.md").read_text()
    documented = {name for row in rows(page, "metric", "meaning") for name in re.findall(r"\w+", row[0])}
    assert documented == set(re.findall(r"`(\w+)`", inspect.getdoc(step.StepResult).partition("`metrics`")[2]))


def test_every_file_that_a_page_names_is_there() -> None:
    for page in PAGES:
        for path in re.findall(r"`((?:art_sdk|tests|examples|docs|scripts)/[\w./-]*\w/?)`", page.read_text()):
            assert "NNNN" in path or (ROOT / path).exists(), f"{page.name}: {path}"


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            if path.startswith("https://"):
                continue
            found = page.parent / path if path else page
            assert found.exists(), f"{page.name}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", found.read_text(), re.M)
                assert anchor in {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}, target


def test_the_schema_of_the_store() -> None:
    drawn = re.search(r"```text\n(contents .*?)```", (DOCS / "store.md").read_text(), re.S)
    assert drawn is not None
    documented = {name: columns for name, *columns in map(str.split, drawn[1].splitlines())}
    assert documented == {
        table.name: [column.name + "*" * column.primary_key for column in table.columns]
        for table in tables.metadata.tables.values()
    }
