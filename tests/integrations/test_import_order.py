"""Capture works whatever is imported first: LangChain's modules import each other in circles."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import logging
logging.basicConfig(level=logging.WARNING)
import art_sdk as art

@art.trajectory
def handle(question):
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langchain_core.tools import tool

    @tool
    def shout(text: str) -> str:
        "Make it loud."
        return text.upper()

    answer = FakeListChatModel(responses=["hello"]).invoke(question)
    return shout.invoke(answer.content)

{first}
handle("hello")
assert art.flush(30)
with art.open_store() as store:
    (found,) = store.trajectories()
    print(sorted(span.operation for span in found.spans))
"""
MODULES = [
    "langchain_openai",
    "langgraph.graph",
    "langchain_core.prompts.chat",
    "langchain_core.caches",
    "langchain_core.callbacks.manager",
    "langchain_core.language_models",
    "langchain_core.tracers.context",
]


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_the_decorator_may_come_before_the_import(module: str, tmp_path: Path) -> None:
    script = SCRIPT.format(first=f"import {module}")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['chat', 'execute_tool', 'invoke_agent']"
    assert "ImportError" not in done.stderr
