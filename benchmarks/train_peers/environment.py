"""TRL's virtual environment, made once and used again.

It holds TRL and what TRL alone needs, pinned; torch, transformers, peft and accelerate it borrows from the environment
that runs the benchmark, so that both sides are measured on the same versions.
"""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from ..capture_peers.environments import CACHE, CannotInstall

TRL = "1.16.0"
_PACKAGES = [f"trl=={TRL}", "datasets==5.2.0", "multiprocess==0.70.19", "pandas==3.1.1"]


def interpreter() -> Path:
    """The Python of the environment, which is made if need be. Raises `CannotInstall`."""
    what = "\n".join([sys.version, sys.prefix, *_PACKAGES])
    folder = CACHE / f"trl-{hashlib.blake2b(what.encode(), digest_size=4).hexdigest()}"
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    print(f"making {folder}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)
    own = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    (Path(own) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--retries=1"]
    done = subprocess.run([*pip, *_PACKAGES], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise CannotInstall((errors or done.stderr.splitlines() or ["pip failed"])[-1])
    (folder / "ready").touch()
    return python
