"""Any value as JSON, without hanging, recursing or calling the value's own code; and its hash.

What is plain data is kept whole. What is not (clients, locks, models) is described by its type.
"""

import dataclasses
import hashlib
import math
from collections import deque
from collections.abc import Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from numbers import Integral, Real
from pathlib import PurePath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

from ..settings import get_settings
from . import redaction
from .records import Content

MAX_DEPTH = 32
_encode = msgspec.json.Encoder().encode
_WRITTEN_OUT = date | time | timedelta | UUID | PurePath | Decimal | Fraction


def to_content(value: Any, *, is_plain: bool = False) -> tuple[Content, bool]:
    """`value` as a content record (its JSON bytes under their BLAKE2b, 16 bytes, hex), and whether something in it
    was masked. `is_plain`: it is what `plain` gave."""
    data, was_masked = _kept(value if is_plain else plain(value))
    return Content(hash=hash_of(data), data=data), was_masked


def hash_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def kept_text(text: str) -> tuple[str, bool]:
    """Words that go on a span as they are (an error's), as far as they may be kept; and whether some were masked."""
    data, was_masked = _kept(clean(text))
    kept = msgspec.json.decode(data)
    return kept if isinstance(kept, str) else "(not kept)", was_masked


def _kept(value: Any) -> tuple[bytes, bool]:
    settings = get_settings()
    data = given = _encode(value)
    if redaction.get_mask() is not None:
        data = msgspec.json.encode(plain(redaction.masked(value)))
    if redaction.may_hold_secret(data):
        data = msgspec.json.encode(redaction.redact(msgspec.json.decode(data)))
    was_masked = data != given
    if not settings.keeps_content:
        data = msgspec.json.encode(redaction.structure(msgspec.json.decode(data)))
    return data, was_masked


def plain(value: Any) -> Any:
    """`value` in terms of dict, list, str, int, float, bool and None."""
    return _plain(value, ())


def clean(text: str) -> str:
    """`text` as every store takes it: lone surrogates and NUL are written out instead of failing on them."""
    if text.isascii():
        return str(text).replace("\0", "\\0") if "\0" in text else str(text)
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    kind = type(value)  # the usual kinds first, by identity: this runs for every word that is kept
    if kind is str:
        return value if value.isascii() and "\0" not in value else clean(value)
    if value is None or kind is bool:
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is int and -(1 << 63) <= value < 1 << 63:
        return value
    if (kind is dict or kind is list) and id(value) not in above and len(above) < MAX_DEPTH:
        below = (*above, id(value))
        if kind is list:
            return [_plain(item, below) for item in value]
        return {_key(k, below): _plain(v, below) for k, v in value.items()}
    return _other(value, above)


def _key(key: Any, above: tuple[int, ...]) -> str:
    if type(key) is str and key.isascii() and "\0" not in key:
        return key
    return clean(key) if isinstance(key, str) else str(_plain(key, above))


def _other(value: Any, above: tuple[int, ...]) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, above)
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, _WRITTEN_OUT):
        return str(value)
    if isinstance(value, Integral):  # numpy's too
        number = int(value)
        return number if -(1 << 63) <= number < 1 << 63 else hex(number)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return {"type": type(value).__name__, "bytes": bytes(value).hex()}
    if id(value) in above or len(above) >= MAX_DEPTH:
        return {"type": type(value).__name__, "omitted": "cycle" if id(value) in above else "too deep"}
    below = (*above, id(value))
    if isinstance(value, dict | MappingProxyType):
        return {_key(k, below): _plain(v, below) for k, v in value.items()}
    if isinstance(value, list | tuple | deque):
        return [_plain(item, below) for item in value]
    if isinstance(value, set | frozenset):  # in an order that the next process finds again
        return sorted((_plain(item, below) for item in value), key=repr)
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
