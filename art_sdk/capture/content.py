"""Any value as JSON, without hanging, recursing or calling the value's own code; and its hash.

What is plain data is kept whole. What is not (clients, locks, models) is described by its type.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import Any

import msgspec

from .records import Content

MAX_DEPTH = 32


def to_content(value: Any) -> Content:
    """`value` as a content record: its JSON bytes under their hash (BLAKE2b, 16 bytes, hex)."""
    data = msgspec.json.encode(plain(value))
    return Content(hash=hashlib.blake2b(data, digest_size=16).hexdigest(), data=data)


def plain(value: Any) -> Any:
    """`value` in terms of dict, list, str, int, float, bool and None."""
    return _plain(value, ())


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # A lone surrogate is no text for UTF-8: keep it visible instead of failing on it.
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Enum):
        return _plain(value.value, above)
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else str(int(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return {"type": type(value).__name__, "bytes": bytes(value).hex()}
    if id(value) in above or len(above) >= MAX_DEPTH:
        return {"type": type(value).__name__, "omitted": "cycle" if id(value) in above else "too deep"}
    below = (*above, id(value))
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(_plain(key, below)): _plain(v, below) for key, v in value.items()}
    if isinstance(value, Sequence | Set):
        return [_plain(item, below) for item in value]
    fields = dict(_fields(value))
    if fields:
        return _plain(fields, above)
    return {"type": f"{type(value).__module__}.{type(value).__qualname__}"}


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, type):
        return
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)
    elif hasattr(type(value), "model_fields"):  # pydantic, without running its serializers
        yield from vars(value).items()
    elif hasattr(type(value), "__struct_fields__"):  # msgspec
        for name in type(value).__struct_fields__:
            yield name, getattr(value, name, None)
