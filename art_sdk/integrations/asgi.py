"""ASGI services (Starlette, FastAPI, Quart …) that serve the requests of trajectories elsewhere.

app.add_middleware(TrajectoryMiddleware)
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ..capture.headers import join_trajectory

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[..., Any], Callable[..., Any]], Awaitable[None]]


class TrajectoryMiddleware:
    """Serves each request inside the trajectory that its `x-art-trajectory` header names, to the end of its body."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        with join_trajectory(scope.get("headers") or ()):
            await self.app(scope, receive, send)
