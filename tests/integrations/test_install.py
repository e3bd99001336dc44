"""Hooks wait for their library, and one that fails to be set breaks nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_BREAK = """
import sys
import art_sdk as art

@art.trajectory
def handle(): return 1

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "art_sdk.integrations.{file}":
            raise ImportError("not with this version")
sys.meta_path.insert(0, Broken())
import {library}
assert handle() == 1
print("still here")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("library", "file"), [("httpx", "http"), ("langchain_core.tracers.context", "langchain")])
def test_a_hook_that_cannot_be_set_does_not_break_the_import(home: Path, library: str, file: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BREAK.format(library=library, file=file)], capture_output=True, text=True
    )
    assert done.stdout == "still here\n", done.stderr
    assert "not with this version" in done.stderr


@pytest.mark.parametrize("first", ["import httpx", "import art_sdk as art; art.instrument()"])
def test_it_does_not_matter_what_is_imported_first(first: str) -> None:
    code = f"{first}\nimport art_sdk, httpx\nart_sdk.instrument()\nprint(hasattr(httpx.Client.send, '__wrapped__'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"


def test_opentelemetrys_list_of_instrumentations_to_leave_out_is_followed() -> None:
    code = "import art_sdk, httpx\nart_sdk.instrument()\nprint(hasattr(httpx.Client.send, '__wrapped__'))"
    environment = os.environ | {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "urllib3, art"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "False\n"
