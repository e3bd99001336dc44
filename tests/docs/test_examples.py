"""The examples of README and docs do what they say: Python runs, commands and flags exist."""

import ast
import inspect
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import stub_api
import typer
from pytest_examples import CodeExample, EvalExample, find_examples
from pytest_examples.config import ExamplesConfig

import art_sdk as art
from art_sdk import lifecycle
from art_sdk.backend.gateway import RewardRequest
from art_sdk.capture import guard
from art_sdk.cli import app
from art_sdk.training.options import LoraOptions, TrainingOptions

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/**/*.md"))
EXAMPLES = list(find_examples(*PAGES))
NEEDS_ENGINE = [example for example in EXAMPLES if example.prefix_settings().get("test") == "skip"]
RUNNABLE = [example for example in EXAMPLES if example not in NEEDS_ENGINE]
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.M | re.S)


@pytest.fixture(scope="module")
def api() -> Iterator[stub_api.StubApi]:
    with stub_api.serve() as running:
        yield running


@pytest.mark.parametrize("example", RUNNABLE, ids=str)
def test_a_python_block_runs_and_prints_what_it_says(
    example: CodeExample,
    eval_example: EvalExample,
    api: stub_api.StubApi,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", api.openai_url)
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-stub")
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # examples are run as __main__
    eval_example.config = ExamplesConfig(line_length=110)
    eval_example.run_print_check(example)
    assert lifecycle.flush(10)
    assert not guard.errors, guard.errors


@pytest.mark.parametrize("example", NEEDS_ENGINE, ids=str)
def test_a_python_block_that_needs_an_engine_calls_what_is_there(example: CodeExample) -> None:
    calls = [node for node in ast.walk(ast.parse(example.source)) if isinstance(node, ast.Call)]
    known: dict[str, Any] = {f"art.{name}": getattr(art, name) for name in art.__all__}
    known |= {"LoraOptions": LoraOptions, "TrainingOptions": TrainingOptions}
    known |= {f"backend.{name}": getattr(art.LocalBackend, name) for name in ("wait_for_step", "versions")}
    checked = 0
    for call in calls:
        name = ast.unparse(call.func)
        assert name in known or not name.startswith(("art.", "backend.")), name
        if name in known:
            parameters = inspect.signature(known[name]).parameters
            assert {keyword.arg for keyword in call.keywords} <= parameters.keys(), ast.unparse(call)
            checked += 1
    assert checked >= 3


def test_few_blocks_need_an_engine_and_the_text_says_why() -> None:
    assert len(NEEDS_ENGINE) <= 3
    for example in NEEDS_ENGINE:
        before = example.path.read_text()[: example.start_index][-500:]
        assert "engine" in before, f"{example}: say why this block is not run"


def test_every_block_says_its_language() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *```(.*)$", page.read_text(), re.M)
        assert len(fences) % 2 == 0, page
        assert {f.split(" ")[0] for f in fences[::2]} <= {"python", "console", "text"}, page


COMMANDS = [
    (page.name, line)
    for page in PAGES
    for block in CONSOLE.findall(page.read_text())
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
] + [(page.name, line) for page in PAGES for line in re.findall(r"(?<!`)`((?:art|make) [^`]+)`", page.read_text())]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_exists(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    match words[0]:
        case "art":
            check_art(words[1:])
        case "make":
            check_make(words[1:])
        case "pip":
            check_pip(words[1:])
        case "curl":
            body = words[words.index("-d") + 1]
            assert "/rewards" in line
            msgspec.json.decode(body.encode(), type=RewardRequest)
        case other:
            assert other in ("git", "cd"), f"{page}: nothing here knows the command {other}"


def check_art(words: list[str]) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group | typer.core.TyperGroup)
    command = group.commands[words[0]]
    if isinstance(command, click.Group | typer.core.TyperGroup):
        words = words[1:]
        command = command.commands[words[0]]
    flags = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    used = [word for word in words[1 : words.index("--") if "--" in words else None] if word.startswith("-")]
    assert set(used) <= flags, f"{used} of {sorted(flags)}"


def check_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
    assert {word for word in words if "=" not in word} <= targets


def check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if words[0] == "install":
        for extra in re.findall(r"art-agent-sdk\[(\w+)\]", " ".join(words)):
            assert extra in project["optional-dependencies"]
        assert any(word.startswith(project["name"]) for word in words)


def test_no_page_names_a_command_of_art_in_its_prose_that_is_not_there() -> None:
    group = typer.main.get_command(app)
    for page in PAGES:
        for name in re.findall(r"`art ([a-z]+)", page.read_text()):
            assert name in group.commands, f"{page.name}: art {name}"  # type: ignore[attr-defined]
