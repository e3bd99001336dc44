"""Agents that learn: capture their runs, train a LoRA adapter on the rewards, serve it while they run.

    import art_sdk as art

    @art.trajectory
    def handle(ticket: str) -> str:
        reply = run_my_agent(ticket)
        art.reward(score(reply))
        return reply

The names below are all there is. They are loaded when first used, so that importing this package
costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend.local import LocalBackend as LocalBackend
    from .capture.headers import join_trajectory as join_trajectory
    from .capture.health import Health as Health
    from .capture.rewards import reward as reward
    from .capture.rollouts import Rollout as Rollout
    from .capture.rollouts import RolloutGroup as RolloutGroup
    from .capture.rollouts import rollouts as rollouts
    from .capture.rollouts import rollouts_sync as rollouts_sync
    from .capture.spans import current_trajectory as current_trajectory
    from .capture.tools import tool as tool
    from .capture.trajectory import trajectory as trajectory
    from .capture.trajectory import trajectory_scope as trajectory_scope
    from .errors import ArtError as ArtError
    from .errors import ConfigError as ConfigError
    from .errors import EngineError as EngineError
    from .errors import RewardError as RewardError
    from .errors import StoreError as StoreError
    from .errors import TrainingError as TrainingError
    from .integrations import instrument as instrument
    from .integrations import uninstrument as uninstrument
    from .lifecycle import flush as flush
    from .lifecycle import health as health
    from .lifecycle import init as init
    from .lifecycle import shutdown as shutdown
    from .store import open_store as open_store

_HOMES = {
    "LocalBackend": "backend.local:LocalBackend",
    "reward": "capture.rewards:reward",
    "Rollout": "capture.rollouts:Rollout",
    "RolloutGroup": "capture.rollouts:RolloutGroup",
    "rollouts": "capture.rollouts:rollouts",
    "rollouts_sync": "capture.rollouts:rollouts_sync",
    "current_trajectory": "capture.spans:current_trajectory",
    "tool": "capture.tools:tool",
    "trajectory": "capture.trajectory:trajectory",
    "trajectory_scope": "capture.trajectory:trajectory_scope",
    "ArtError": "errors:ArtError",
    "ConfigError": "errors:ConfigError",
    "EngineError": "errors:EngineError",
    "RewardError": "errors:RewardError",
    "StoreError": "errors:StoreError",
    "TrainingError": "errors:TrainingError",
    "instrument": "integrations:instrument",
    "uninstrument": "integrations:uninstrument",
    "join_trajectory": "capture.headers:join_trajectory",
    "flush": "lifecycle:flush",
    "Health": "capture.health:Health",
    "health": "lifecycle:health",
    "init": "lifecycle:init",
    "shutdown": "lifecycle:shutdown",
    "open_store": "store:open_store",
}

__all__ = sorted(_HOMES)
__version__ = "0.1.0"


if not TYPE_CHECKING:  # a type checker would otherwise take every name for ours

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        importlib.import_module(".lifecycle", __name__)  # whoever captures also drains
        value = getattr(importlib.import_module(f".{module}", __name__), attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
