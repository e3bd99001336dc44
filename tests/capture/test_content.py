"""Any value becomes JSON: without hanging, recursing or running the value's code."""

import datetime
import enum
import json
import uuid
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from art_sdk.capture.content import clean, plain, to_content

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None)
@given(json_values)
def test_json_is_kept_as_it_is(value: Any) -> None:
    # NUL is written out, for Postgres has no such text.
    expected = json.loads(json.dumps(value).replace("\\u0000", "\\\\0"))
    assert json.loads(to_content(value)[0].data) == expected


@settings(max_examples=50, deadline=None)
@given(json_values)
def test_equal_values_have_equal_hashes(value: Any) -> None:
    assert to_content(value) == to_content(json.loads(json.dumps(value)))


class Colour(enum.StrEnum):
    RED = "red"


@dataclass
class Order:
    number: int
    lines: list[str]


class Ticket(BaseModel):
    text: str
    order: Any = None


class Struct(msgspec.Struct):
    x: int


class Name(str):
    __slots__ = ()


class Score(float):
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        (Colour.RED, "red"),
        (Order(1, ["a"]), {"number": 1, "lines": ["a"]}),
        (Ticket(text="a", order=Order(1, [])), {"text": "a", "order": {"number": 1, "lines": []}}),
        (Struct(x=1), {"x": 1}),
        (Name("a"), "a"),
        ({Name("a"): 1}, {"a": 1}),
        (Score(0.5), 0.5),
        (OrderedDict(a=1), {"a": 1}),
        (namedtuple("P", "x y")(1, 2), [1, 2]),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), {"type": "numpy.bool"}),
        (Decimal("1.10"), "1.10"),
        (datetime.date(2030, 1, 2), "2030-01-02"),
        (datetime.timedelta(seconds=1), "0:00:01"),
        (PurePosixPath("/a/b"), "/a/b"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (2**64, "0x10000000000000000"),
        (b"\x00\xff", {"type": "bytes", "bytes": "00ff"}),
        ("a\ud800b", "a\\ud800b"),
        ("a\0b", "a\\0b"),
        (object(), {"type": "builtins.object"}),
        (int, {"type": "builtins.type"}),
        (range(10**12), {"type": "builtins.range"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_value_has_a_form(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert json.loads(to_content(value)[0].data) == expected


def test_an_enormous_integer_is_kept() -> None:
    assert int(plain(10**5000), 16) == 10**5000


def test_a_cycle_is_cut() -> None:
    a: dict[str, Any] = {"x": 1}
    a["self"] = [a]
    assert plain(a) == {"x": 1, "self": [{"type": "dict", "omitted": "cycle"}]}


def test_a_cycle_through_objects_is_cut() -> None:
    order = Order(1, [])
    order.lines.append(order)  # type: ignore[arg-type]
    assert len(to_content(order)[0].data) < 1000


def test_what_is_too_deep_is_cut() -> None:
    value: Any = 1
    for _ in range(10_000):
        value = [value]
    assert len(to_content(value)[0].data) < 200


def test_a_value_twice_side_by_side_is_no_cycle() -> None:
    shared = {"a": 1}
    assert plain([shared, shared]) == [{"a": 1}, {"a": 1}]


def test_a_values_own_code_is_not_run() -> None:
    class Client:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        def __iter__(self) -> Any:
            raise AssertionError

        def __repr__(self) -> str:
            raise AssertionError

    assert plain(Client())["type"].endswith("Client")


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_clean_text_is_utf8_without_nul(text: str) -> None:
    assert b"\0" not in clean(text).encode()
