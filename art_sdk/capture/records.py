"""What a process writes to its journal and the store's writer applies: six kinds of record.

Each record can be applied twice, or before the record that it refers to, and the store ends up
the same. Times are nanoseconds since the epoch, ids are lower-case hex as in OpenTelemetry (a
trajectory id is a trace id, 32 digits; a span id has 16). Records hold no cycles, so the garbage collector need not
look at them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec


class Content(msgspec.Struct, tag="content", frozen=True, gc=False):
    """A message, a tool definition or an image: stored once, under the hash of its bytes, for as long as one of the
    trajectories that said it is there."""

    hash: str
    data: bytes
    trajectory_id: str | None = None


class SpanStart(msgspec.Struct, tag="start", frozen=True, gc=False):
    """A span began. `parent_id` is None for the root, which is the trajectory itself."""

    trajectory_id: str
    span_id: str
    parent_id: str | None
    name: str
    started_at: int
    attributes: dict[str, Any]


class SpanEnd(msgspec.Struct, tag="end", frozen=True, gc=False):
    """A span ended. Carries the whole span, so a lost start costs nothing."""

    trajectory_id: str
    span_id: str
    parent_id: str | None
    name: str
    started_at: int
    ended_at: int
    attributes: dict[str, Any]
    error: str | None = None


class Reward(msgspec.Struct, tag="reward", frozen=True, gc=False):
    """A reward on a trajectory, or on one of its spans. A second one with the same id changes nothing."""

    id: str
    trajectory_id: str
    span_id: str | None
    name: str
    value: float
    source: str
    created_at: int


class Completion(msgspec.Struct, tag="completion", frozen=True, gc=False):
    """What an engine sampled for one choice of one LLM call.

    `token_ids[i]` was sampled with `logprobs[i]` (natural log, under the sampling distribution)
    after `prompt_ids + token_ids[:i]`. `version` is the number behind `policy@`; 0 is the base model.
    """

    response_id: str
    choice: int
    policy: str
    version: int
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    sampling: dict[str, Any]
    finish_reason: str | None
    created_at: int
    trajectory_id: str | None = None
    span_id: str | None = None


class Group(msgspec.Struct, tag="group", frozen=True, gc=False):
    """Trajectories that are compared with each other: announced before its members by `art.rollouts`."""

    id: str
    size: int
    created_at: int
    priority: int = 0


Record = Content | SpanStart | SpanEnd | Reward | Completion | Group

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record | list[Record]] = msgspec.msgpack.Decoder(Record | list[Record])
_each: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def array(encoded: Sequence[bytes]) -> bytes:
    """Encoded records as one msgpack array of them."""
    count = len(encoded)
    head = bytes([0x90 | count]) if count < 16 else b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(encoded)


def decode(payload: bytes | memoryview) -> Sequence[Record | None]:
    """The records of a payload, one or an array of some; None for one that is none, or of another version's kind."""
    try:
        found = _decoder.decode(payload)
    except msgspec.DecodeError:
        return _decode_each(payload)
    return found if isinstance(found, list) else [found]


def _decode_each(payload: bytes | memoryview) -> list[Record | None]:
    try:
        parts = _each.decode(payload)
    except msgspec.DecodeError:
        return [None]
    return [record for part in parts for record in decode(memoryview(part))]
