"""What this library raises. Every message names the thing, what was expected and what to do next.

    ArtError
    ├── ConfigError      an option, environment variable or file is wrong or missing
    ├── RewardError      a reward that is no number, or that belongs to no trajectory
    ├── StoreError       the trajectory store cannot be opened, read or written
    ├── TrainingError    a model cannot be loaded, a step cannot be computed or saved
    └── EngineError      the inference engine cannot be started, reached or given an adapter

Capture never raises into user code: `ConfigError` comes at decoration or start, `RewardError` from
`art.reward` only.
"""


class ArtError(Exception):
    """Base of everything that this library raises on purpose."""


class ConfigError(ArtError):
    """An option, an environment variable or a file is wrong or missing."""


class RewardError(ArtError, ValueError):
    """A reward that is no finite number, or that belongs to no trajectory."""


class StoreError(ArtError):
    """The trajectory store cannot be opened, read or written."""


class TrainingError(ArtError):
    """A model cannot be loaded, or a training step cannot be computed or saved."""


class EngineError(ArtError):
    """The inference engine cannot be started, reached or given an adapter."""
