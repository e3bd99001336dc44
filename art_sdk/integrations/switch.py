"""The one switch of all hooks."""

from ..capture import spans
from ..capture.spans import LiveTrajectory

_on = False


def is_on() -> bool:
    return _on


def turn(on: bool) -> None:
    global _on
    _on = on


def captured() -> LiveTrajectory | None:
    """The trajectory that hooks write to: the current one, while it runs and the switch is on.

    A task or worker begun inside a trajectory reports it as current for ever: once it has ended
    nothing more is added to it.
    """
    live = spans.current_trajectory() if _on else None
    return live if live is not None and live.root.is_recording() else None
