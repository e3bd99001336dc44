"""What an LLM call says on the wire: requests and answers of the four HTTP APIs, streamed or not.

A request is cut into its messages without decoding them: most of a long conversation has been seen before, and
`repeats` knows it by its bytes. Each other function takes the decoded JSON and returns what a span needs, in the
conventions' terms.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from ..capture import spans
from .messages import (
    Message,
    anthropic_system,
    from_anthropic,
    from_openai,
    from_responses_instructions,
    from_responses_item,
    text,
    user,
)

Json = Mapping[str, Any]


class Item(NamedTuple):
    """A message or tool definition as it stands in a request, and what converts it once it is decoded."""

    raw: msgspec.Raw | bytes
    convert: Callable[[Any], Any]

    def read(self) -> Any:
        return _converted(self.convert, decoded(self.raw))


def _converted(convert: Callable[[Any], Any], value: Any) -> Any:
    """A message in the conventions' terms; one that doesn't have the form that its API asks for is kept as it came."""
    try:
        return convert(value)
    except (AttributeError, KeyError, TypeError, ValueError):
        role = value.get("role", "unknown") if isinstance(value, dict) else "unknown"
        return {"role": role, "parts": [{"type": "unknown", "content": value}]}


@dataclass
class Request:
    operation: str
    model: str
    attributes: dict[str, Any]
    messages: list[Item]
    tools: list[Item]


@dataclass
class Answer:
    attributes: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    complete: bool = True
    """False for a stream that broke off before the model had finished."""
    error: str | None = None
    """What the server says went wrong, in an answer whose status said that all was well."""


_PARAMETERS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "stream": "gen_ai.request.stream",
    "n": "gen_ai.request.choice.count",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
_APIS = ("/chat/completions", "/completions", "/responses", "/messages")
_NULL = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    """What is read of a request to any of the four; the messages and tools are left as they stand."""

    model: Any = None
    messages: list[msgspec.Raw] = []
    input: str | list[msgspec.Raw] = ""
    instructions: msgspec.Raw = _NULL
    system: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL
    tools: list[msgspec.Raw] | None = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    seed: Any = None
    stream: Any = None
    n: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None


_decode_body = msgspec.json.Decoder(_Body).decode


def api_of(path: str) -> str | None:
    """Which of the four APIs a URL path belongs to, None for any other request."""
    path = urlsplit(path).path.rstrip("/")
    return next((api for api in _APIS if path.endswith(api)), None)


def decoded(data: msgspec.Raw | bytes) -> Any:
    """JSON as lenient as clients write it: with `NaN` and lone surrogates, which the fast decoder refuses."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return json.loads(bytes(data))


def read_request(api: str, data: bytes) -> Request | None:
    """The request with this body, None where it is none to an LLM. Raises `ValueError` for what is no JSON."""
    try:
        body = _decode_body(data)
    except msgspec.DecodeError:  # and what has the wrong types
        body = _unusual_body(json.loads(data))
    if body.model is None:
        return None
    model = str(body.model)
    attributes = {spans.REQUEST_MODEL: model, **parameters(lambda key: getattr(body, key))}
    tools = [Item(tool, _as_it_came) for tool in body.tools or ()]
    operation = spans.TEXT_COMPLETION if api == "/completions" else spans.CHAT
    return Request(operation, model, attributes, _sent(api, body), tools)


def parameters(given: Callable[[str], Any]) -> dict[str, Any]:
    """The conventions' attributes for the parameters of a request; `given` tells each by its name on the wire."""
    return {name: value for key, name in _PARAMETERS.items() if isinstance(value := given(key), int | float)}


def _sent(api: str, body: _Body) -> list[Item]:
    match api:
        case "/chat/completions":
            return [Item(message, from_openai) for message in body.messages]
        case "/completions":
            prompt = decoded(body.prompt)
            prompts = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str) else [prompt]
            return [Item(msgspec.json.encode(p), _from_prompt) for p in prompts]
        case "/responses":
            first = [] if _is_empty(body.instructions) else [Item(body.instructions, from_responses_instructions)]
            if isinstance(body.input, str):
                return [*first, Item(msgspec.json.encode(body.input), user)] if body.input else first
            return first + [Item(item, from_responses_item) for item in body.input]
        case _:
            first = [] if _is_empty(body.system) else [Item(body.system, anthropic_system)]
            return first + [Item(message, from_anthropic) for message in body.messages]


def _unusual_body(body: Any) -> _Body:
    """A body that the fast decoder refuses, as far as it is one at all."""
    if not isinstance(body, dict):
        return _Body()
    found = {key: body[key] for key in (*_PARAMETERS, "model") if key in body}
    for key in ("instructions", "system", "prompt"):
        found[key] = msgspec.Raw(json.dumps(body.get(key)).encode())
    for key in ("messages", "input", "tools"):
        if isinstance(body.get(key), list):
            found[key] = [msgspec.Raw(json.dumps(item).encode()) for item in body[key]]
    if isinstance(body.get("input"), str):
        found["input"] = body["input"].encode("utf-8", "backslashreplace").decode()
    return _Body(**found)


def _is_empty(raw: msgspec.Raw) -> bool:
    return bytes(raw) in (b"null", b'""', b"[]")


def _as_it_came(value: Any) -> Any:
    return value


def _from_prompt(prompt: Any) -> Message:
    return user(prompt if isinstance(prompt, str) else json.dumps(prompt))


def read_answer(api: str, body: Json) -> Answer:
    match api:
        case "/chat/completions" | "/completions":
            return _read_choices(body)
        case "/responses":
            return _read_responses(body)
        case _:
            return _read_anthropic(body)


def read_stream(api: str, data: bytes) -> Answer:
    """The answer that the events of a stream add up to, as far as they came."""
    match api:
        case "/chat/completions" | "/completions":
            answer = _read_choices(_join(_Choices(), data))
        case "/responses":
            answer = _read_responses(_whole_response(data) or _join(_Response(), data))
        case _:
            answer = _read_anthropic(_join(_Blocks(), data))
    # Clients stop reading and close once the model has finished: that is no early end.
    answer.complete = spans.FINISH_REASONS in answer.attributes
    return answer


def _order(index: Any) -> int:
    return index if isinstance(index, int) else 0


def _events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith(b"data:"):
            try:
                event = decoded(line[5:])
            except ValueError:  # "[DONE]", or cut in the middle
                continue
            if isinstance(event, dict):
                yield event


class _Stream(Protocol):
    body: dict[str, Any]

    def add(self, event: Json) -> None: ...
    def close(self) -> None: ...


def _join(stream: _Stream, data: bytes) -> dict[str, Any]:
    """The body that the same answer would have had without a stream."""
    for event in _events(data.split(b"\n")):
        if event.get("error"):
            stream.body["error"] = event["error"]
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # an event unlike any that its API has
            stream.add(event)
    stream.close()
    whole: dict[str, Any] = _whole(stream.body)
    return whole


class _Pieces(list[str]):
    """A text that is still coming: adding to a string costs its length each time."""


def _extend(target: dict[str, Any], key: str, piece: Any) -> None:
    if isinstance(piece, str):
        held = target.get(key)
        if not isinstance(held, _Pieces):
            held = target[key] = _Pieces([held] if held else [])
        held.append(piece)


def _whole(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def _usage(usage: Any) -> dict[str, Any]:
    if not isinstance(usage, Mapping):
        return {}
    found = {
        spans.INPUT_TOKENS: usage.get("prompt_tokens", usage.get("input_tokens")),
        spans.OUTPUT_TOKENS: usage.get("completion_tokens", usage.get("output_tokens")),
    }
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    if isinstance(details, Mapping):
        found["gen_ai.usage.reasoning.output_tokens"] = details.get("reasoning_tokens")
    cached = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    read = cached.get("cached_tokens") if isinstance(cached, Mapping) else usage.get("cache_read_input_tokens")
    found["gen_ai.usage.cache_read.input_tokens"] = read
    return {key: value for key, value in found.items() if isinstance(value, int)}


def _identity(body: Json) -> dict[str, Any]:
    found = {spans.RESPONSE_ID: body.get("id"), spans.RESPONSE_MODEL: body.get("model")}
    return {key: str(value) for key, value in found.items() if value} | _usage(body.get("usage"))


def _read_choices(body: Json) -> Answer:
    choices = sorted(body.get("choices") or (), key=lambda choice: _order(choice.get("index")))
    messages = [
        _converted(from_openai, choice["message"])
        if choice.get("message")
        else {"role": "assistant", "parts": [text(choice.get("text", ""))]}
        for choice in choices
    ]
    reasons = [str(choice["finish_reason"]) for choice in choices if choice.get("finish_reason")]
    attributes = _identity(body) | ({spans.FINISH_REASONS: reasons} if reasons else {})
    return Answer(attributes, messages, error=_error(body.get("error")))


class _Choices:
    """The stream of `/chat/completions` and `/completions`."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, event: Json) -> None:
        self.body |= {key: event[key] for key in ("id", "model", "usage") if event.get(key)}
        for part in event.get("choices") or ():
            choice = self._choices.setdefault(part.get("index", 0), {"index": part.get("index", 0)})
            if part.get("finish_reason"):
                choice["finish_reason"] = part["finish_reason"]
            _extend(choice, "text", part.get("text"))
            if part.get("delta") is not None:
                _add_delta(choice.setdefault("message", {"role": "assistant", "tool_calls": []}), part["delta"])

    def close(self) -> None:
        self.body["choices"] = list(self._choices.values())


def _add_delta(message: dict[str, Any], delta: Json) -> None:
    for key in ("content", "reasoning_content", "reasoning", "refusal"):
        _extend(message, key, delta.get(key))
    if isinstance(audio := delta.get("audio"), Mapping):
        heard = message.setdefault("audio", {})
        heard |= {key: audio[key] for key in ("id", "expires_at") if audio.get(key)}
        _extend(heard, "transcript", audio.get("transcript"))
    for part in delta.get("tool_calls") or ():
        calls, index = message["tool_calls"], part.get("index")
        call = next((call for call in reversed(calls) if call["index"] == index), None)
        if call is None or (part.get("id") and call["id"] and part["id"] != call["id"]):  # some give all the same index
            call = {"index": index, "id": None, "function": {"name": "", "arguments": ""}}
            calls.append(call)
            calls.sort(key=lambda call: _order(call["index"]))
        function = part.get("function") or {}
        call["id"] = call["id"] or part.get("id")
        _extend(call["function"], "name", function.get("name"))
        _extend(call["function"], "arguments", function.get("arguments"))


_RESPONSES_DELTAS = {
    "response.output_text.delta": ("message", "content", "output_text", "text"),
    "response.refusal.delta": ("message", "content", "refusal", "refusal"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "summary_text", "text"),
    "response.reasoning_text.delta": ("reasoning", "content", "reasoning_text", "text"),
}
"""What an event adds to: the kind of its item, the item's list of parts, the kind of a part, the part's words."""


_CALL_DELTAS = {
    "response.function_call_arguments.delta": ("function_call", "arguments"),
    "response.custom_tool_call_input.delta": ("custom_tool_call", "input"),
}
_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")


def _whole_response(data: bytes) -> dict[str, Any] | None:
    """The body that the last event of `/responses` repeats, where the stream came so far and it isn't left empty."""
    last = next(_events(line for line in reversed(data.split(b"\n"))), {})
    found = last.get("response") if last.get("type") in _RESPONSE_ENDS else None
    return found if isinstance(found, dict) and found.get("output") else None


class _Response:
    """The stream of `/responses`."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}

    def add(self, event: Json) -> None:
        kind = event.get("type", "")
        if isinstance(event.get("response"), Mapping):
            self.body |= event["response"]
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[event["output_index"]] = dict(event["item"])
        elif kind in _RESPONSES_DELTAS:
            of, parts, part_kind, words = _RESPONSES_DELTAS[kind]
            item = self._items.setdefault(event["output_index"], {"type": of, "role": "assistant"})
            index = event.get("content_index", event.get("summary_index", 0))
            _extend(_part_at(item, parts, index, part_kind), words, event["delta"])
        elif kind in _CALL_DELTAS:
            of, words = _CALL_DELTAS[kind]
            _extend(self._items.setdefault(event["output_index"], {"type": of}), words, event["delta"])
        elif kind == "error" and "error" not in self.body:
            self.body["error"] = {key: event.get(key) for key in ("code", "message")}

    def close(self) -> None:
        if self._items:
            self.body["output"] = [self._items[index] for index in sorted(self._items, key=_order)]


def _part_at(item: dict[str, Any], parts: str, index: int, kind: str) -> dict[str, Any]:
    """The part that a delta belongs to. Servers number them in order; a number that is out of it is a new part."""
    found: list[dict[str, Any]] = item.get(parts) or []
    item[parts] = found
    if index >= len(found):
        found.append({"type": kind})
        return found[-1]
    return found[index]


def _read_responses(body: Json) -> Answer:
    attributes = _identity(body)
    if (status := body.get("status")) and status != "in_progress":
        attributes[spans.FINISH_REASONS] = [status]
    messages = [_converted(from_responses_item, item) for item in body.get("output") or ()]
    return Answer(attributes, messages, error=_error(body.get("error")))


def _error(error: Any) -> str | None:
    if isinstance(error, Mapping):
        return " ".join(str(error[key]) for key in ("code", "type", "message") if error.get(key))
    return str(error) if error else None


def _read_anthropic(body: Json) -> Answer:
    attributes = _identity(body)
    if reason := body.get("stop_reason"):
        attributes[spans.FINISH_REASONS] = [str(reason)]
    return Answer(
        attributes, [_converted(from_anthropic, body)] if body.get("content") else [], error=_error(body.get("error"))
    )


class _Blocks:
    """The stream of Anthropic's `/messages`."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}

    def add(self, event: Json) -> None:
        match event.get("type"):
            case "message_start":
                self.body |= event["message"]
            case "content_block_start":
                self._blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                index, delta = event["index"], event["delta"]
                block = self._blocks.setdefault(index, {"type": "text"})
                for key in ("text", "thinking", "signature"):
                    _extend(block, key, delta.get(key))
                if isinstance(delta.get("partial_json"), str):
                    self._inputs.setdefault(index, []).append(delta["partial_json"])
            case "message_delta":
                self.body["stop_reason"] = event["delta"].get("stop_reason")
                self.body["usage"] = {**(self.body.get("usage") or {}), **(event.get("usage") or {})}

    def close(self) -> None:
        for index, pieces in self._inputs.items():
            if written := "".join(pieces):
                try:
                    self._blocks[index]["input"] = decoded(written.encode())
                except ValueError:  # cut in the middle: the model's words
                    self._blocks[index]["input"] = written
        self.body["content"] = list(self._blocks.values())
