"""What a trajectory has said before: each call of a conversation sends the whole of it again.

A message that stands in a request byte for byte as in an earlier one of the same trajectory is known by its length
and Python's own 64-bit hash, and is neither decoded, converted, masked nor encoded again. So a call costs what is
new in it. (`hashlib` would let go of the interpreter's lock at each message, and wait for it behind the writer.)
"""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ..capture import spans
from ..capture.spans import LiveTrajectory
from .wire import Item

_known: WeakKeyDictionary[LiveTrajectory, dict[Any, tuple[str, bool]]] = WeakKeyDictionary()


def content_attributes(live: LiveTrajectory, values: Mapping[str, Sequence[Item]]) -> dict[str, Any]:
    """`spans.content_attributes` for items of a request: only what is new is read and kept."""
    known = _known_of(live)
    attributes: dict[str, Any] = {}
    for attribute, items in values.items():
        found = []
        for item in items:
            key = _key(item)
            if key not in known:
                known[key] = spans.keep(live, item.read())
            found.append(known[key])
        attributes[attribute] = spans.listed(live, [identity for identity, _ in found])
        if any(was_masked for _, was_masked in found):
            attributes[spans.MASKED] = True
    return attributes


def _known_of(live: LiveTrajectory) -> dict[Any, tuple[str, bool]]:
    if (known := _known.get(live)) is None:
        known = _known[live] = {}
        live.at_end.append(known.clear)  # contexts that libraries keep may hold the trajectory for longer
    return known


def _key(item: Item) -> Any:
    data = bytes(item.raw)
    return hash(data), len(data), item.convert
