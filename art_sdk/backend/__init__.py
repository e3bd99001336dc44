"""Serving: the engine's process, the router that picks a version, the gateway in front of both, the probe."""
