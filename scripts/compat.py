"""Runs capture's tests against the oldest supported versions of the agent libraries, and the newest that pip offers.

Each in a virtual environment of its own. `make test-compat`; docs/capture/compatibility.md lists what it prints.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".venv-compat"
OLDEST = {
    "langchain-core": "1.0.0",
    "langchain-openai": "1.0.0",
    "langgraph": "1.0.0",
    "langgraph-prebuilt": "1.0.0",
    "langchain": "1.0.0",
    "openai": "1.109.1",
    "anthropic": "0.60.0",
    "litellm": "1.75.0",
}
TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "fastapi", "httpx", "httpx2", "numpy", "psutil")
TESTS = (
    "tests/integrations/test_http.py",
    "tests/integrations/test_litellm.py",
    "tests/integrations/test_langchain.py",
    "tests/integrations/test_langgraph.py",
    "tests/integrations/test_attempts.py",
    "tests/integrations/test_streams.py",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["oldest", "newest"], help="one of the two")
    parser.add_argument("--pytest", default="", help="further arguments for pytest")
    arguments = parser.parse_args()
    wanted = [arguments.only] if arguments.only else ["oldest", "newest"]
    results = {which: run(which, arguments.pytest.split()) for which in wanted}
    for which, (versions, passed) in results.items():
        print(f"{which}: {'passed' if passed else 'FAILED'}  {json.dumps(versions)}")
    sys.exit(not all(passed for _, passed in results.values()))


def run(which: str, arguments: list[str]) -> tuple[dict[str, str], bool]:
    """Make the environment new, so that `newest` is today's, and run the tests in it."""
    folder = ENVIRONMENTS / which
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    wanted = [f"{name}=={version}" if which == "oldest" else name for name, version in OLDEST.items()]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--editable", str(ROOT), *wanted, *TOOLS], check=True)
    found = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=json"], check=True, capture_output=True, text=True
    )
    versions = {entry["name"]: entry["version"] for entry in json.loads(found.stdout) if entry["name"] in OLDEST}
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    tests = subprocess.run(
        [str(python), "-m", "pytest", "-q", *TESTS, *arguments], cwd=ROOT, env=environment, check=False
    )
    return versions, tests.returncode == 0


if __name__ == "__main__":
    main()
