"""Hooks into the frameworks and clients that agents are made of, one file each.

A hook waits for its library: it is set when the program imports it, and costs nothing before.
Hooks can't be taken out again safely, so they stay and a switch turns them off.
"""

import importlib
import os
from typing import Any

import wrapt

from ..capture.guard import guarded
from . import switch

_HOOKS = {
    "httpx": "http:install",
    "httpx2": "http:install",
    "openai._base_client": "http:wrap_sdk",
    "anthropic._base_client": "http:wrap_sdk",
    "threading": "threads:install_threads",
    "concurrent.futures.thread": "threads:install_executor",
    "concurrent.futures.process": "processes:install_executor",
    "multiprocessing.process": "processes:install_process",
    "multiprocessing.pool": "processes:install_pools",
    "mcp.client.session": "mcp:install_session",
    "mcp.client.client": "mcp:install_client",
    "opentelemetry.sdk.trace": "otel:watch_providers",
    "langchain_core.tracers.context": "langchain:register",
    "langchain_core.language_models.chat_models": "langchain:wrap_chat_models",
    "langchain_core.language_models.llms": "langchain:wrap_text_models",
    "langgraph.pregel._loop": "langchain:wrap_graphs",
}
"""The module whose import sets a hook, and the file and function here that set it."""

_waiting = False


def instrument() -> None:
    """Capture from every supported library that this program imports. Safe to call twice.

    `@art.trajectory` calls it; `uninstrument` turns it off again.
    """
    global _waiting
    switch.turn(True)
    if _waiting or _switched_off():
        return
    _waiting = True
    for module in _HOOKS:
        wrapt.register_post_import_hook(lambda imported: guarded(_install, imported), module)


def _switched_off() -> bool:
    """Whether OpenTelemetry's own list of instrumentations to leave out names this one."""
    listed = os.environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "").split(",")
    return "art" in (name.strip() for name in listed)


def _install(imported: Any) -> None:
    file, _, function = _HOOKS[imported.__name__].partition(":")
    getattr(importlib.import_module(f".{file}", __name__), function)(imported)


def uninstrument() -> None:
    """Stop capturing LLM and tool calls. Trajectories and rewards are still recorded."""
    switch.turn(False)


def instrument_once() -> None:
    """`instrument`, unless somebody has already decided."""
    if not _waiting:
        instrument()
