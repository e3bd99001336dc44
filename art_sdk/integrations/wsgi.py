"""WSGI services (Flask, Django …) that serve the requests of trajectories elsewhere.

app.wsgi_app = TrajectoryMiddleware(app.wsgi_app)
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..capture import spans
from ..capture.guard import guarded
from ..capture.headers import joined_later, trajectory_header
from ..capture.spans import LiveTrajectory, Place

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class TrajectoryMiddleware:
    """Serves each request inside the trajectory that its `x-art-trajectory` header names, to the end of its body."""

    def __init__(self, app: App) -> None:
        self.app = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        sent = guarded(trajectory_header, environ)
        live = joined_later(sent) if sent is not None else None
        if live is None:
            return self.app(environ, start_response)
        place = Place(live, live.root)
        try:
            with spans.carried(place):
                body = self.app(environ, start_response)
        except BaseException:
            live.open = False
            raise
        if _is_whole(body, environ):
            live.open = False
            return body
        return _Body(body, place)


def _is_whole(body: Iterable[bytes], environ: dict[str, Any]) -> bool:
    """Whether no code of the application runs while the body is sent: the server then wants it as it is."""
    wrapper = environ.get("wsgi.file_wrapper")
    return isinstance(body, list | tuple | bytes) or (isinstance(wrapper, type) and isinstance(body, wrapper))


class _Body:
    """A body that is made while it is sent: its code runs inside the trajectory, the server's outside."""

    def __init__(self, body: Iterable[bytes], place: Place) -> None:
        self._body = body
        self._chunks: Iterator[bytes] | None = None
        self._place = place

    @property
    def _live(self) -> LiveTrajectory:
        return self._place.live

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with spans.carried(self._place):
            if self._chunks is None:
                self._chunks = iter(self._body)
            return next(self._chunks)

    def close(self) -> None:
        try:
            if callable(close := getattr(self._body, "close", None)):
                with spans.carried(self._place):
                    close()
        finally:
            self._live.open = False
