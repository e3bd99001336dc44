"""A virtual environment for each peer, made once and used again.

It holds the peer's own packages, pinned; all else (LangChain, openai, the OpenTelemetry SDK, torch) it borrows
from the environment that runs the benchmark, so that every candidate is measured on the same versions.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "art-agent-sdk" / "bench"

_INSTRUMENTATION = "opentelemetry-instrumentation==0.66b2"
PEERS: dict[str, list[str]] = {
    "openinference": [
        "openinference-instrumentation-langchain==0.1.80",
        "openinference-instrumentation==0.1.72",
        "openinference-semantic-conventions==0.1.42",
        _INSTRUMENTATION,
    ],
    "genai": [
        "opentelemetry-instrumentation-genai-langchain==1.3b0",
        "opentelemetry-util-genai==1.3b0",
        _INSTRUMENTATION,
    ],
    "openllmetry": ["opentelemetry-instrumentation-langchain==0.62.4", _INSTRUMENTATION],
    "mlflow": [
        "mlflow-skinny==3.17.2",
        "cachetools==7.3.3",
        "databricks-sdk==0.162.0",
        "gitdb==4.0.12",
        "gitpython==3.2.1",
        "google-auth==2.63.0",
        "pandas==3.1.1",
        "pyasn1==0.6.5",
        "pyasn1-modules==0.4.2",
        "smmap==5.0.3",
        "sqlparse==0.6.1",
    ],
    "langfuse": ["langfuse==5.0.4", "backoff==2.2.1"],
    "langsmith": [],  # langchain-core brings it
}
"""Each peer's packages; the first is the peer."""


class CannotInstall(Exception):
    """Says why a peer is skipped."""


def interpreter(peer: str, packages: Sequence[str]) -> Path:
    """The Python of the peer's environment, which is made if need be. Raises `CannotInstall`."""
    what = "\n".join([sys.version, sys.prefix, *packages])
    folder = CACHE / f"{peer}-{hashlib.blake2b(what.encode(), digest_size=4).hexdigest()}"
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    print(f"making {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)
    own = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    (Path(own) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if packages:
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--retries=1"]
        done = subprocess.run([*pip, *packages], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise CannotInstall((errors or done.stderr.splitlines() or ["pip failed"])[-1])
    (folder / "ready").touch()
    return python
