"""The form that every dialect is read into."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...capture import spans

Attributes = Mapping[str, Any]


@dataclass
class Reading:
    """What a foreign span says. `content` is by the names of `spans.content_attributes`."""

    operation: str
    subject: str
    attributes: dict[str, Any] = field(default_factory=dict)
    content: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attributes = _known(self.attributes)
        self.content = _known(self.content)

    @property
    def is_call(self) -> bool:
        return self.operation in spans.LLM_OPERATIONS


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != []}


def decoded(value: Any) -> Any:
    """A value that spans carry as JSON; text that is none stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def arguments_of(call: Any) -> Any:
    """The arguments of a call that was written down as `{"args": [...], "kwargs": {...}}`."""
    if not isinstance(call, dict) or not isinstance(call.get("kwargs"), dict) or "args" not in call:
        return call
    return {"args": call["args"], "kwargs": call["kwargs"]} if call["args"] else call["kwargs"]
