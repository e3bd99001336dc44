"""Hooks into the frameworks and clients that agents are made of, one file each.

A hook waits for its library: it is set when the program imports it, and costs nothing before.
Hooks can't be taken out again safely, so they stay and a switch turns them off.
"""

import wrapt

from . import switch

_waiting = False


def instrument() -> None:
    """Capture from every supported library that this program imports. Safe to call twice.

    `@art.trajectory` calls it; `uninstrument` turns it off again.
    """
    global _waiting
    switch.turn(True)
    if _waiting:
        return
    _waiting = True
    for module in ("httpx", "httpx2"):
        wrapt.register_post_import_hook("art_sdk.integrations.http:install", module)
    wrapt.register_post_import_hook("art_sdk.integrations.langchain:install", "langchain_core.callbacks.manager")


def uninstrument() -> None:
    """Stop capturing LLM and tool calls. Trajectories and rewards are still recorded."""
    switch.turn(False)


def instrument_once() -> None:
    """`instrument`, unless somebody has already decided."""
    if not _waiting:
        instrument()
