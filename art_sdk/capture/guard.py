"""The wall between capture's own faults and the user's code."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("art_sdk.capture")
errors: Counter[str] = Counter()
"""Faults of capture's own hooks, by hook; each is logged the first time."""


def guarded(hook: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call a hook. What it raises is counted and logged once; the caller goes on with None."""
    try:
        return hook(*args, **kwargs)
    except Exception as error:
        count_error(getattr(hook, "__qualname__", type(hook).__qualname__), error)
        return None


def count_error(name: str, error: Exception) -> None:
    """Count a fault of a hook; log the first of each."""
    errors[name] += 1
    if errors[name] == 1:
        log.error("capture: %s failed; the agent runs on, further failures are only counted", name, exc_info=error)
