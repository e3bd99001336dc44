"""Every `ART_*` environment variable, in one place.

Read when first needed and again after `reset()`; nothing here is read at import.
"""

import os
from functools import cached_property, lru_cache
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from .errors import ConfigError


class Settings(BaseSettings):
    """What the environment says. `art up` prints the few that an agent in another shell needs."""

    model_config = SettingsConfigDict(env_prefix="ART_", frozen=True, extra="ignore")

    home: Path = Path(".art")
    """Folder of the journal, the default store, the versions and the logs."""
    store_url: str = ""
    """SQLAlchemy URL of the trajectory store; empty: `sqlite:///{home}/art.db`."""
    policy: str | None = None
    """Policy of trajectories whose decorator names none."""
    gateway_url: str = ""
    """Base URL of the gateway (`http://127.0.0.1:8000/v1`): calls to it carry the trajectory's id."""
    engine_python: str = ""
    """Interpreter that runs vLLM; empty: this one."""
    group_size: int = Field(default=8, ge=1, le=4096)
    """Trajectories of one task key are gathered into groups of at most this many."""
    group_wait: float = Field(default=2.0, ge=0)
    """Seconds that such a group stays open for more members after its first one has ended."""
    group_deadline: float = Field(default=600.0, gt=0)
    """Seconds after which a group is used without the rewards and members that it still lacks."""
    journal_segment_bytes: int = Field(default=64 << 20, ge=4096)
    """A journal file of this size is closed and the next one begun."""
    disabled: bool | None = None
    """Capture nothing. Unset: what `OTEL_SDK_DISABLED` says."""
    auto: bool = False
    """Make a trajectory of every agent run that is in none. `art run` sets it."""
    sample_rate: float = Field(default=1.0, ge=0, le=1)
    """Share of the trajectories that are captured; each one whole or not at all."""
    capture_content: bool | None = None
    """False: keep roles, tool names and sizes but none of the words. Unset: what
    `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` says where that is `false` or `no_content`."""
    redact: str = Field(
        default="keys,bearer", pattern=r"^(none|(keys|bearer|email|cards)(,(keys|bearer|email|cards))*)$"
    )
    """What is masked wherever it is found: API keys, bearer tokens, e-mail addresses, card numbers."""
    trace_hosts: str = ""
    """Hosts beside the gateway that requests tell the trajectory to (`billing.internal,localhost:8080`): services of
    one's own. Their LLM calls then belong to it."""

    @cached_property
    def off(self) -> bool:
        """Whether nothing is captured."""
        return _says("OTEL_SDK_DISABLED", "true") if self.disabled is None else self.disabled

    @cached_property
    def keeps_content(self) -> bool:
        """Whether the words of messages, arguments and results are kept."""
        if self.capture_content is not None:
            return self.capture_content
        return not _says("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "false", "no_content", "0")

    @cached_property
    def redactions(self) -> frozenset[str]:
        """The kinds that `redact` names."""
        return frozenset(self.redact.split(",")) - {"none"}

    @cached_property
    def hosts(self) -> frozenset[str]:
        """`trace_hosts`, in lower case: `host` for every port, or `host:port`."""
        return frozenset(host.strip().lower() for host in self.trace_hosts.split(",") if host.strip())

    def resolved_store_url(self) -> str:
        return absolute(self.store_url) if self.store_url else f"sqlite:///{self.home.resolve() / 'art.db'}"


def absolute(store_url: str) -> str:
    """The URL of the same store for a process in another folder."""
    scheme, slashes, path = store_url.partition(":///")
    relative = scheme.partition("+")[0] == "sqlite" and slashes and path and not path.startswith(("/", ":", "file:"))
    return f"{scheme}:///{Path(path).resolve()}" if relative else store_url


def _says(variable: str, *values: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in values


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process. Raises `ConfigError` that names the variable at fault."""
    try:
        return Settings()
    except ValidationError as error:
        faults = "; ".join(f"ART_{str(e['loc'][0]).upper()}={e['input']!r}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"wrong environment variable: {faults}") from error


def reset() -> None:
    """Read the environment again at the next `get_settings()`."""
    get_settings.cache_clear()
