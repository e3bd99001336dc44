"""Serving: the engine's process, the router that picks a version, the gateway in front of both, the probe."""

from ..extras import require_backend

require_backend()  # here, or whichever module comes first would fail with a bare ModuleNotFoundError
