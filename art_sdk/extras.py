"""The packages of the optional extras, and the command that installs them."""

import importlib.metadata
import importlib.util
import json
import shutil
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .errors import ConfigError

_BACKEND = ("httpx", "litellm", "peft", "safetensors", "starlette", "torch", "transformers", "uvicorn")
_PACKAGE = "art-agent-sdk"
_CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def gpu_found() -> bool:
    """Whether this machine has an NVIDIA GPU with its driver."""
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()


def backend_extra() -> str:
    """The extra that fits this machine."""
    return "gpu" if gpu_found() else "cpu"


def install_command(extra: str, python: str = "") -> str:
    """What to run in a shell. The CPU engine needs a build of torch that most package indexes don't have."""
    pip = f"{python} -m pip install" if python else "pip install"
    index = f" --extra-index-url {_CPU_BUILDS}" if extra == "cpu" else ""
    return f"{pip}{index} '{_source()}[{extra}]'"


def _source() -> str:
    """What pip installed this from: the folder of a checkout, or the package's name."""
    try:
        origin = json.loads(importlib.metadata.distribution(_PACKAGE).read_text("direct_url.json") or "{}")
    except importlib.metadata.PackageNotFoundError:
        return _PACKAGE
    url = urlsplit(origin.get("url", ""))
    return url2pathname(url.path) if url.scheme == "file" else _PACKAGE


def require_backend() -> None:
    """Raises `ConfigError` where a package of the backend is not installed."""
    missing = [package for package in _BACKEND if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"serving and training need packages that are not installed ({', '.join(missing)}). "
            f"Run: {install_command(backend_extra())}"
        )
