"""`LocalBackend`: engine, gateway and worker on this machine, from `with` to the end of its block.

The three are processes of their own, so the agent's process never imports torch; each is watched
and started again when it dies, and all of them end with this process, even when it is killed. They
talk through the store alone: the worker records versions there, the gateway publishes them.
"""

import contextlib
import fcntl
import json
import logging
import os
import secrets
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .. import lifecycle, settings
from ..errors import ConfigError, EngineError, StoreError
from ..store import steps
from ..store.database import Database
from ..store.queue import Order
from ..store.steps import Step, Version
from ..training.options import LoraOptions, TrainingOptions
from .child import Child, spawn
from .engine import HOST, Engine, EngineOptions, check_port, free_port, linear_layers
from .options import ENGINE_KEY, GATEWAY_KEY, BackendOptions, checked

log = logging.getLogger("art_sdk.backend")

_MODULES = {"worker": "art_sdk.backend.worker", "gateway": "art_sdk.backend.serve"}
_WATCH_SECONDS = 0.5
_START_SECONDS = 300.0
_FLUSH_SECONDS = 60.0
_RESTARTS = 3
_RESTARTS_WITHIN_SECONDS = 600.0


def may_restart(deaths: list[float], now: float) -> bool:
    """Whether a process that died at these times (seconds, the last one included) is worth another start."""
    return sum(now - death < _RESTARTS_WITHIN_SECONDS for death in deaths) <= _RESTARTS


class LocalBackend:
    """Serves a policy, trains it in the background, and serves what was learned.

        with art.LocalBackend(base_model="models/SmolLM2-135M-Instruct", policy="support") as backend:
            ...                             # OPENAI_BASE_URL and OPENAI_API_KEY point at the gateway
            backend.wait_for_step()         # only where the program wants to go on after a step

    Args:
        base_model: folder of the model, or its name on the Hugging Face hub.
        policy: what agents ask for instead of a model.
        home, store: as `ART_HOME` and `ART_STORE_URL`.
        lora, training: the adapter's shape and how it is trained.
        groups_per_step: ready groups that make a step; after `batch_wait` seconds fewer will do.
        order: which ready groups come first, those that wait for longest (`oldest`) or those that the newest
            version answered (`freshest`). Either way a higher `priority` of `art.rollouts` comes before a lower one.
        port: the gateway's; a free one by default.
        max_model_len, max_num_seqs, kv_cache_gb, tool_call_parser: the engine's, see `EngineOptions`.
        set_env: set `OPENAI_BASE_URL`, `OPENAI_API_KEY` and the `ART_*` variables while the block runs.

    Raises:
        ConfigError: an option is wrong, or another backend serves this policy from this folder.
        EngineError: a process does not start; the message has the end of its log.
    """

    def __init__(
        self,
        *,
        base_model: str | Path,
        policy: str,
        home: str | Path | None = None,
        store: str | None = None,
        lora: LoraOptions | None = None,
        training: TrainingOptions | None = None,
        groups_per_step: int = 4,
        batch_wait: float = 10.0,
        order: Order = "oldest",
        port: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        kv_cache_gb: float | None = None,
        tool_call_parser: str | None = None,
        set_env: bool = True,
    ) -> None:
        configured = settings.get_settings()
        home = Path(home or configured.home).resolve()
        self.options = checked(
            BackendOptions,
            policy=policy,
            base_model=_model(base_model),
            base_name=_name(base_model),
            home=home,
            store_url=settings.absolute(store or configured.store_url or f"sqlite:///{home / 'art.db'}"),
            gateway_port=port or free_port(),
            engine_port=free_port(),
            lora=lora or LoraOptions(),
            training=training or TrainingOptions(),
            groups_per_step=groups_per_step,
            batch_wait=batch_wait,
            order=order,
        )
        engine = checked(
            EngineOptions,
            base_model=self.options.base_model,
            served_names=(steps.served_name(policy, 0), self.options.base_name),
            lora_rank=self.options.lora.rank,
            lora_layers=_lora_layers(self.options.lora, self.options.base_model),
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            kv_cache_gb=kv_cache_gb,
            tool_call_parser=tool_call_parser,
            port=self.options.engine_port,
        )
        self._logs = home / "logs"
        self._engine = Engine(engine, log=self._logs / "engine.log")
        self._set_env = set_env
        self._children: dict[str, Child] = {}
        self._deaths: dict[str, list[float]] = {}
        self._failure: EngineError | None = None
        self._stopping = threading.Event()
        self._seen_step = 0
        self._stack = contextlib.ExitStack()
        self._api_key = ""

    # What an agent needs

    @property
    def base_url(self) -> str:
        """The OpenAI-compatible API: `http://127.0.0.1:PORT/v1`."""
        return f"http://{HOST}:{self.options.gateway_port}/v1"

    @property
    def env(self) -> dict[str, str]:
        """The variables that an agent in another process needs, with absolute values."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self._api_key,
            "ART_GATEWAY_URL": self.base_url,
            "ART_HOME": str(self.options.home),
            "ART_STORE_URL": self.options.store_url,
            "ART_POLICY": self.options.policy,
        }

    # Its life

    def __enter__(self) -> "LocalBackend":
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        options = self.options
        self._failure = None
        self._stopping.clear()
        self._children.clear()
        try:
            options.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"home {options.home} can't be made a folder: {error.strerror}; name another") from error
        stack.enter_context(_only_one(options))
        check_port(options.gateway_port)
        self._api_key = _api_key(options.home)
        self.database = Database(options.store_url)
        stack.callback(self.database.close)
        steps.register_policy(self.database, options.policy, options.base_model)
        self._seen_step = max((step.step for step in steps.steps(self.database, options.policy)), default=0)
        if self._set_env:
            stack.enter_context(_environment(self.env))

        stack.callback(self._stop_children)
        self._config = options.home / f"{options.policy}.json"
        _write_private(self._config, options.model_dump_json(indent=2))
        self._spawn("worker")
        self._spawn("gateway")
        self._engine.start(_START_SECONDS)
        self._wait_until_served()
        watcher = threading.Thread(target=self._watch, name="art-supervisor", daemon=True)
        watcher.start()
        stack.callback(watcher.join)
        stack.callback(self._stopping.set)

    def _spawn(self, name: str) -> None:
        env = {
            **os.environ,
            **self.env,
            GATEWAY_KEY: self._api_key,
            ENGINE_KEY: self._engine.api_key,
            "PYTHONUNBUFFERED": "1",
            # Threads that spin while they wait would take the engine's cores.
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        argv = [sys.executable, "-m", _MODULES[name], str(self._config)]
        self._children[name] = spawn(argv, env=env, log=self._logs / f"{name}.log")

    def _stop_children(self) -> None:
        for child in self._children.values():
            child.stop()
        self._engine.stop()

    def _wait_until_served(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        request = urllib.request.Request(
            f"{self.base_url}/models", headers={"Authorization": f"Bearer {self._api_key}"}
        )
        while True:
            for name, child in self._children.items():
                if not child.alive():
                    raise EngineError(f"the {name} ended with code {child.returncode}. {self._log_end(name)}")
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
                if self.options.policy in {model["id"] for model in json.load(answer)["data"]}:
                    return
            if time.monotonic() > deadline:
                raise EngineError(f"the gateway did not serve {self.options.policy}. {self._log_end('gateway')}")
            time.sleep(0.1)

    def _watch(self) -> None:
        """Start again what has died; give up on what keeps dying."""
        while not self._stopping.wait(_WATCH_SECONDS) and self._failure is None:
            for name in [name for name, child in self._children.items() if not child.alive()]:
                self._restart(name, partial(self._spawn, name))
            if not self._engine.alive():
                self._restart("engine", partial(self._engine.start, _START_SECONDS, self._stopping))

    def _restart(self, name: str, start: Callable[[], None]) -> None:
        deaths = self._deaths.setdefault(name, [])
        deaths.append(time.monotonic())
        try:
            if not may_restart(deaths, deaths[-1]):
                raise EngineError(
                    f"the {name} died {len(deaths)} times and is not started again. {self._log_end(name)}"
                )
            log.error("the %s died and is started again; see %s", name, self._logs / f"{name}.log")
            start()
        except Exception as error:  # whatever it is, nobody else would hear of it
            if self._stopping.is_set():
                return
            self._failure = error if isinstance(error, EngineError) else EngineError(f"the {name} can't start: {error}")
            log.error("%s", self._failure)

    def _log_end(self, name: str) -> str:
        path = self._logs / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines()[-15:] if path.exists() else []
        return "\n".join([f"The last lines of {path}:", *lines])

    # What it has learned

    def wait_for_step(self, timeout: float = 600.0) -> Step:
        """Wait for the next training step and until the version that it made is served.

        A step with nothing to learn from counts: its `version` is None and its `note` says why.

        Raises:
            TimeoutError: no step within `timeout` seconds.
            EngineError: the version was rejected, or one of the processes is gone for good.
            StoreError: what this process captured does not reach the store.
        """
        if not lifecycle.flush(_FLUSH_SECONDS):
            raise StoreError(
                f"what was captured did not reach {self.database.name} within {_FLUSH_SECONDS:.0f} s, "
                "so no step can come of it: the log of art_sdk.store says why"
            )
        deadline = time.monotonic() + timeout
        away = False
        while True:
            self._check()
            try:
                new = steps.steps(self.database, self.options.policy, after=self._seen_step)
                if new and self._settled(new[0]):
                    self._seen_step = new[0].step
                    return new[0]
                away = False
            except StoreError as error:
                if not away:
                    log.error("%s; waiting until it is back", error)
                away = True
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no training step of {self.options.policy} within {timeout:.0f} s; "
                    f"see art status and {self._logs / 'worker.log'}"
                )
            time.sleep(1.0 if away else 0.05)

    @property
    def failure(self) -> EngineError | None:
        """Why one of the processes is gone for good; None while all is well."""
        return self._failure

    def versions(self) -> list[Version]:
        """All versions, oldest first."""
        return steps.versions(self.database, self.options.policy)

    def live_version(self) -> int:
        """The version that answers for the policy now."""
        return next(version.version for version in reversed(self.versions()) if version.status == "live")

    def _settled(self, step: Step) -> bool:
        if step.version is None:
            return True
        version = self.versions()[step.version]
        if version.status == "rejected":
            self._seen_step = step.step
            raise EngineError(f"{version.name} was rejected: {version.note}")
        return version.status != "candidate"

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def _model(base_model: str | Path) -> str:
    """Folder of the base model. Engine and trainer must read the same files, so a hub name is resolved once."""
    if not str(base_model).strip():
        raise ConfigError("base_model is empty: give the model's folder, or its name on the Hugging Face hub")
    path = Path(base_model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"base_model {str(base_model)!r} is no model folder: it has no config.json")
        return str(path.resolve())
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(str(base_model))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"base_model {str(base_model)!r} is neither a folder nor a model that the Hugging Face hub or its local "
            f"cache has ({type(error).__name__}): check the name, or download it first with hf download"
        ) from error


def _lora_layers(lora: LoraOptions, base_model: str) -> tuple[str, ...] | None:
    """The layers that the engine must be ready to change: a call costs less when they are few. None means all."""
    layers = linear_layers(Path(base_model))  # all of them are looked up again when the engine starts
    if lora.target_modules == "all-linear":
        return None
    if layers and (unknown := sorted(set(lora.target_modules).difference(layers))):
        raise ConfigError(
            f"lora.target_modules: {base_model} has no {', '.join(unknown)}; its linear layers are {', '.join(layers)}"
        )
    return lora.target_modules


def _name(base_model: str | Path) -> str:
    """The name under which the base model itself can be asked for: its folder's, or its own on the hub."""
    path = Path(base_model).expanduser()
    return (path.resolve() if path.is_dir() else path).name


def _api_key(home: Path) -> str:
    """The gateway's key: made once for a folder, so that agents survive a restart of the backend."""
    path = home / "gateway.key"
    if not path.exists():
        _write_private(path, "sk-art-" + secrets.token_urlsafe(24))
    return path.read_text().strip()


def _write_private(path: Path, text: str) -> None:
    """The store's URL may have a password in it, and the key is one: nobody else may read them."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


@contextlib.contextmanager
def _only_one(options: BackendOptions) -> Iterator[None]:
    """Two workers on one policy's folder would write the same versions."""
    path = options.home / f"{options.policy}.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(
                f"policy {options.policy!r} in {options.home} is already served by process {file.read().strip()}: "
                "use that one, stop it, or choose another home"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set the variables; capture begins anew with the store that they name, and again after."""
    before = {name: os.environ.get(name) for name in variables}
    lifecycle.shutdown()
    os.environ.update(variables)
    settings.reset()
    try:
        yield
    finally:
        lifecycle.shutdown()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        settings.reset()
