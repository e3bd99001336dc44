"""`art.join_trajectory`: serve a request as a part of the trajectory that it was sent from.

The sender's hook writes `x-art-trajectory` to the gateway and to the hosts in `ART_TRACE_HOSTS`; this is the
other end. What comes in may come from anybody: a header that is none changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import spans
from .guard import guarded
from .spans import LiveTrajectory

Headers = Mapping[Any, Any] | Iterable[tuple[Any, Any]]


@contextmanager
def join_trajectory(headers: Headers) -> Iterator[None]:
    """Make the trajectory that a request belongs to the current one: LLM and tool calls made here are part of it.

        with art.join_trajectory(request.headers):
            answer(request)

    A decorated function called inside is a trajectory of its own, with that one as its parent. Without the header,
    or with a wrong one (logged once), nothing changes.

    Args:
        headers: the request's headers, of any framework: a mapping or pairs, in any case, text or bytes; a WSGI
            environment too.
    """
    sent = guarded(trajectory_header, headers)
    if sent is None:
        yield
        return
    with spans.joined(sent):
        yield


def trajectory_header(headers: Headers) -> str | None:
    """The value of `x-art-trajectory` among a request's headers."""
    pairs = headers.items() if hasattr(headers, "items") else headers
    for name, value in pairs:
        if _spelled(name) == spans.TRAJECTORY_HEADER:
            return _text(value).strip()
    return None


def joined_later(sent: str) -> LiveTrajectory | None:
    """The trajectory that a header names, to be made current step by step; None for a wrong header."""
    return guarded(spans.remote, sent)


def _spelled(name: Any) -> str:
    return _text(name).lower().replace("_", "-").removeprefix("http-")


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
