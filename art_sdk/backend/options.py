"""What `LocalBackend` and `art up` were asked for, as its processes read it from a file."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ConfigError
from ..store.queue import Order
from ..training.options import LoraOptions, TrainingOptions

Options = TypeVar("Options", bound=BaseModel)

GATEWAY_KEY = "ART_GATEWAY_API_KEY"
ENGINE_KEY = "ART_ENGINE_API_KEY"
"""Variables in which the processes are given the keys: a file or a command line would show them."""


class BackendOptions(BaseModel):
    """One policy on one machine: where things are, and how it is trained and served."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    policy: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name that agents ask for."""
    base_model: str
    """Folder of the base model."""
    base_name: str
    """The name under which the base model itself can be asked for."""
    home: Path
    """Absolute path of the folder of journals, versions and logs."""
    store_url: str
    """SQLAlchemy URL of the trajectory store."""
    gateway_port: int = Field(ge=1, le=65535)
    engine_port: int = Field(ge=1, le=65535)
    lora: LoraOptions = LoraOptions()
    training: TrainingOptions = TrainingOptions()
    groups_per_step: int = Field(default=4, ge=1)
    """Ready groups that make a step."""
    order: Order = "oldest"
    """Which ready groups come first: those that wait for longest, or those that the newest version answered."""
    batch_wait: float = Field(default=10.0, ge=0)
    """Seconds after which a step is made of fewer."""
    lease_seconds: float = Field(default=120.0, gt=0)
    """A worker that is silent for so long has lost its groups."""

    @property
    def versions_dir(self) -> Path:
        return self.home / "versions" / self.policy

    def version_path(self, version: int) -> Path:
        return self.versions_dir / f"{version:06d}"


def checked(kind: type[Options], **values: Any) -> Options:
    """Options from values of a user's. Raises `ConfigError` that names each one at fault."""
    try:
        return kind(**values)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}={e['input']!r}: {e['msg']}" for e in error.errors())
        raise ConfigError(faults) from error
