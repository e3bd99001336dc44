"""A span that is written to the journal when it starts and when it ends: OpenTelemetry's interface, nothing between.

The SDK's own span passes a provider, a sampler, limits and processors, which the user's set-up can change. This one
has none of them, so nothing can switch it off or cut it short, and it costs less.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.trace import Span, SpanContext, Status, StatusCode, TraceFlags

from . import journal
from .content import clean
from .records import SpanEnd, SpanStart


class RecordingSpan(Span):
    """A span of a trajectory. `trajectory_id` and `span_id` are hex digits, times nanoseconds since the epoch.

    `held`: its start is written with the next record. `aside`: its end too; for what is no call.
    """

    def __init__(
        self,
        name: str,
        trajectory_id: str,
        parent_id: str | None,
        attributes: Mapping[str, Any],
        *,
        start_time: int | None = None,
        held: bool = False,
        aside: bool = False,
    ) -> None:
        self.name = clean(name)
        self.trajectory_id = trajectory_id
        self.span_id = os.urandom(8).hex()  # not `random`, which agents and tests seed: ids would repeat
        self.parent_id = parent_id
        self.start_time = start_time or time.time_ns()
        self.attributes: dict[str, Any] = {}
        self._error: str | None = None
        self._aside = aside
        self._process = os.getpid()  # 0 once it has ended
        self.set_attributes(attributes)
        (journal.hold if held or aside else journal.append)(self._start())

    def _start(self) -> SpanStart:
        return SpanStart(self.trajectory_id, self.span_id, self.parent_id, self.name, self.start_time, self.attributes)

    def tell(self) -> None:
        """Write what is known of it so far: a crash then leaves it."""
        if self.is_recording():
            journal.append(self._start())

    def end(self, end_time: int | None = None) -> None:
        if not self.is_recording():
            return
        self._process = 0
        (journal.hold if self._aside else journal.append)(
            SpanEnd(
                self.trajectory_id,
                self.span_id,
                self.parent_id,
                self.name,
                self.start_time,
                end_time or time.time_ns(),
                self.attributes,
                self._error,
            )
        )

    def is_recording(self) -> bool:
        """False once it has ended, and in a forked child, which has a copy of it: it is the parent's to end."""
        return self._process == os.getpid()

    def set_attribute(self, key: str, value: Any) -> None:
        self.set_attributes({key: value})

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        if self._process:
            for key, value in attributes.items():
                if (kept := _attribute(value)) is not None:
                    self.attributes[key] = kept

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Only that it failed is kept, with the description."""
        code = status.status_code if isinstance(status, Status) else status
        words = status.description if isinstance(status, Status) else description
        self._error = clean(words or "error") if code is StatusCode.ERROR else None

    def update_name(self, name: str) -> None:
        self.name = clean(name)

    def get_span_context(self) -> SpanContext:
        return SpanContext(
            int(self.trajectory_id, 16),
            int(self.span_id, 16),
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        """Events are not kept."""

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        """Events are not kept."""


def _attribute(value: Any) -> Any:
    """`value` as the journal and every store take it; None for what OpenTelemetry has no attributes of."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() and "\0" not in value else clean(value)
    if kind is bool:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else str(value)
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if kind is list:
        return [kept for item in value if (kept := _attribute(item)) is not None]
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return _attribute(list(value))
    return None
