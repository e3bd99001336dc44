"""`art run` and `ART_AUTO`: a program that knows nothing of this library is captured."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from art_sdk import cli
from art_sdk.store import Store

pytestmark = pytest.mark.slow  # whole programs

AGENT = """
import sys
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from langchain_core.language_models.fake_chat_models import FakeListChatModel

model = FakeListChatModel(responses=["fine"])

class State(TypedDict):
    text: str

graph = StateGraph(State)
graph.add_node("think", lambda state: {"text": model.invoke(state["text"]).text})
graph.add_edge(START, "think")
graph.add_edge("think", END)
app = graph.compile()
for word in sys.argv[1:]:
    print(app.invoke({"text": word})["text"])
sys.exit(3)
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    return file


def run(command: list[str], home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = os.environ | {"ART_HOME": str(home)} | environment
    return subprocess.run(command, env=given, capture_output=True, text=True, cwd=home.parent)


def check(store: Store, policy: str | None) -> None:
    runs = list(store.trajectories())
    assert sorted((run.name, run.status, run.input["text"], run.policy) for run in runs) == [
        ("LangGraph", "finished", "a", policy),
        ("LangGraph", "finished", "b", policy),
    ]
    assert [span.name for span in runs[0].spans][1:] == ["invoke_agent think", "chat"]


def test_a_program_runs_as_ever_and_each_agent_run_in_it_is_a_trajectory(
    agent: Path, home: Path, stored: Callable[[], Store]
) -> None:
    command = [sys.executable, "-c", "from art_sdk.cli import main; main()", "run", "--policy", "desk", "--"]
    done = run([*command, sys.executable, str(agent), "a", "b"], home)
    assert (done.returncode, done.stdout, done.stderr) == (3, "fine\nfine\n", "")
    check(stored(), "desk")


def test_the_program_may_go_elsewhere_and_writes_to_the_same_store(
    agent: Path, home: Path, stored: Callable[[], Store]
) -> None:
    agent.write_text("import os\nos.chdir('/')\n" + AGENT)
    command = [sys.executable, "-c", "from art_sdk.cli import main; main()", "run", "--home", home.name]
    done = run([*command, "--store", f"sqlite:///{home.name}/art.db", "--", sys.executable, str(agent), "a", "b"], home)
    assert done.returncode == 3, done.stderr
    check(stored(), None)


def test_the_variable_alone_does_it(agent: Path, home: Path, stored: Callable[[], Store]) -> None:
    done = run([sys.executable, str(agent), "a", "b"], home, ART_AUTO="1")
    assert (done.returncode, done.stdout) == (3, "fine\nfine\n"), done.stderr
    check(stored(), None)


def test_without_it_nothing_is_imported_and_nothing_written(agent: Path, home: Path) -> None:
    script = "import sys; print([name for name in sys.modules if name.startswith(('art_sdk', 'opentelemetry'))])"
    assert run([sys.executable, "-c", script], home).stdout == "[]\n"
    run([sys.executable, str(agent), "a"], home)
    assert not (home / "journal").exists()


def test_a_program_that_is_not_there_is_named(home: Path) -> None:
    with pytest.raises(cli.ArtError, match=r"no program 'pyhton': expected as in `art run -- python agent.py`"):
        cli.run.run(["pyhton", "agent.py"])
