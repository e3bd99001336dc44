"""The one switch of all hooks."""

from opentelemetry import context as otel_context
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY

from ..capture import spans
from ..capture.spans import Place

_on = False


def is_on() -> bool:
    return _on


def turn(on: bool) -> None:
    global _on
    _on = on


def here() -> Place | None:
    """Where hooks write to: the place of an open trajectory, while the switch is on.

    A task or worker begun inside a trajectory reports it as current for ever: once it has ended
    nothing more is added to it.
    """
    return spans.place() if _on and not otel_context.get_value(_SUPPRESS_INSTRUMENTATION_KEY) else None
