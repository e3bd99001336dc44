"""What was said before: each call of a conversation sends the whole of it again.

A message that stands in a request byte for byte as in an earlier one of the same trajectory is known by its length
and Python's own 64-bit hash, and is neither decoded, converted, masked nor encoded again. So a call costs what is
new in it. (`hashlib` would let go of the interpreter's lock at each message, and wait for it behind the writer.)

What requests begin with, the system's message and the tools, is known from other trajectories too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..capture import redaction, spans
from ..capture.content import to_content
from ..capture.records import Content
from ..capture.spans import LiveTrajectory
from ..settings import Settings, get_settings
from .wire import Item

_MAX_BEGINNINGS = 128
_MAX_BYTES = 32 << 10


def content_attributes(live: LiveTrajectory, values: Mapping[str, Sequence[Item]]) -> dict[str, Any]:
    """`spans.content_attributes` for items of a request: only what is new is read and kept."""
    known = live.said
    attributes: dict[str, Any] = {}
    for attribute, items in values.items():
        found = []
        for index, item in enumerate(items):
            data = bytes(item.raw)
            key = (hash(data), len(data), item.convert)
            if key not in known:
                begins = len(data) <= _MAX_BYTES and (index == 0 or attribute == spans.TOOL_DEFINITIONS)
                known[key] = _keep_beginning(live, item, key) if begins else spans.keep(live, item.read())
            found.append(known[key])
        attributes[attribute] = spans.listed(live, [identity for identity, _ in found])
        if any(was_masked for _, was_masked in found):
            attributes[spans.MASKED] = True
    return attributes


@dataclass(frozen=True)
class _Beginning:
    content: Content
    was_masked: bool
    settings: Settings
    """What said how it was to be masked, with the `mask` function."""
    mask: redaction.Mask | None


_beginnings: dict[Any, _Beginning] = {}


def _keep_beginning(live: LiveTrajectory, item: Item, key: Any) -> tuple[str, bool]:
    settings, mask = get_settings(), redaction.get_mask()
    known = _beginnings.get(key)
    if known is None or known.settings is not settings or known.mask is not mask:
        content, was_masked = to_content(item.read())
        if len(_beginnings) >= _MAX_BEGINNINGS:
            _beginnings.clear()
        known = _beginnings[key] = _Beginning(content, was_masked, settings, mask)
    spans.keep_content(live, known.content)
    return known.content.hash, known.was_masked
