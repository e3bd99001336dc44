"""Importing and decorating cost next to nothing and bring in nothing heavy."""

import json
import re
import statistics
import subprocess
import sys

import pytest

import art_sdk

_HEAVY = ("torch", "litellm", "sqlalchemy", "langchain_core", "langchain", "transformers", "openai", "httpx")


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_takes_less_than_150_ms_and_loads_nothing_heavy() -> None:
    code = f"""
import sys, time, json
start = time.perf_counter()
import art_sdk
seconds = time.perf_counter() - start
print(json.dumps([seconds, [name for name in {_HEAVY!r} if name in sys.modules]]))
"""
    runs = [json.loads(_run(code)) for _ in range(5)]
    assert all(heavy == [] for _, heavy in runs)
    assert statistics.median(seconds for seconds, _ in runs) < 0.150


def test_decorating_loads_nothing_heavy() -> None:
    code = f"""
import sys, json
import art_sdk as art

@art.trajectory
def handle(ticket): return ticket

@art.tool
def look_up(key): return key

print(json.dumps([name for name in {_HEAVY!r} if name in sys.modules]))
"""
    assert json.loads(_run(code)) == []


@pytest.mark.parametrize("name", art_sdk.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(art_sdk, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"art_sdk.*nonsense"):
        art_sdk.nonsense  # noqa: B018


def test_dir_lists_the_public_names() -> None:
    assert set(dir(art_sdk)) == set(art_sdk.__all__)


def test_a_missing_extra_says_what_to_install() -> None:
    code = """
import sys
sys.modules["peft"] = None
import art_sdk as art
try:
    art.LocalBackend
except art.ConfigError as error:
    print(error)
"""
    said = _run(code)
    assert "packages that are not installed (peft)" in said
    assert "pip install" in said
    assert re.search(r"\[(cpu|gpu)\]'", said)
