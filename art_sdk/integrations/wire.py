"""What an LLM call says on the wire: requests and answers of the four HTTP APIs, streamed or not.

Each function takes the decoded JSON and returns what a span needs, in the conventions' terms.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..capture import spans
from .messages import (
    Message,
    anthropic_system,
    from_anthropic,
    from_openai,
    from_responses_input,
    from_responses_item,
    text,
)

Json = Mapping[str, Any]


@dataclass
class Request:
    operation: str
    model: str
    attributes: dict[str, Any]
    messages: list[Message]
    tools: list[Any]


@dataclass
class Answer:
    attributes: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    complete: bool = True
    """False for a stream that broke off before the model had finished."""


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


def api_of(path: str) -> str | None:
    """Which of the four APIs a URL path belongs to, None for any other request."""
    path = urlsplit(path).path.rstrip("/")
    return next((api for api in _APIS if path.endswith(api)), None)


def read_request(api: str, body: Json) -> Request:
    model = str(body.get("model", ""))
    attributes: dict[str, Any] = {spans.REQUEST_MODEL: model}
    attributes |= {name: body[key] for key, name in _PARAMETERS.items() if isinstance(body.get(key), int | float)}
    messages: list[Message]
    match api:
        case "/chat/completions":
            messages = [from_openai(message) for message in body.get("messages", ())]
        case "/completions":
            prompt = body.get("prompt", "")
            prompts = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str) else [prompt]
            messages = [{"role": "user", "parts": [text(p if isinstance(p, str) else json.dumps(p))]} for p in prompts]
        case "/responses":
            messages = from_responses_input(body)
        case _:
            messages = anthropic_system(body.get("system")) + [from_anthropic(m) for m in body.get("messages", ())]
    operation = spans.TEXT_COMPLETION if api == "/completions" else spans.CHAT
    return Request(operation, model, attributes, messages, list(body.get("tools") or ()))


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
    events = list(_events(data))
    match api:
        case "/chat/completions" | "/completions":
            answer = _read_choices(_join_choices(events))
        case "/responses":
            answer = _read_responses(_join_responses(events))
        case _:
            answer = _read_anthropic(_join_anthropic(events))
    # Clients stop reading and close once the model has finished: that is no early end.
    answer.complete = spans.FINISH_REASONS in answer.attributes
    return answer


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        if line.startswith(b"data:"):
            try:
                event = json.loads(line[5:])
            except ValueError:  # "[DONE]", or cut in the middle
                continue
            if isinstance(event, dict):
                yield event


def _usage(usage: Any) -> dict[str, Any]:
    if not isinstance(usage, Mapping):
        return {}
    found = {
        spans.INPUT_TOKENS: usage.get("prompt_tokens", usage.get("input_tokens")),
        spans.OUTPUT_TOKENS: usage.get("completion_tokens", usage.get("output_tokens")),
    }
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    found["gen_ai.usage.reasoning.output_tokens"] = details.get("reasoning_tokens")
    cached = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    found["gen_ai.usage.cache_read.input_tokens"] = cached.get("cached_tokens", usage.get("cache_read_input_tokens"))
    return {key: value for key, value in found.items() if value is not None}


def _identity(body: Json) -> dict[str, Any]:
    found = {spans.RESPONSE_ID: body.get("id"), spans.RESPONSE_MODEL: body.get("model")}
    return {key: value for key, value in found.items() if value} | _usage(body.get("usage"))


def _read_choices(body: Json) -> Answer:
    choices = sorted(body.get("choices") or (), key=lambda choice: choice.get("index", 0))
    messages = [
        from_openai(choice["message"])
        if choice.get("message")
        else {"role": "assistant", "parts": [text(choice.get("text", ""))]}
        for choice in choices
    ]
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    return Answer(_identity(body) | ({spans.FINISH_REASONS: reasons} if reasons else {}), messages)


def _join_choices(events: list[dict[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        body |= {key: event[key] for key in ("id", "model", "usage") if event.get(key)}
        for part in event.get("choices") or ():
            choice = choices.setdefault(part.get("index", 0), {"index": part.get("index", 0)})
            if part.get("finish_reason"):
                choice["finish_reason"] = part["finish_reason"]
            if isinstance(part.get("text"), str):
                choice["text"] = choice.get("text", "") + part["text"]
            if part.get("delta") is not None:
                _add_delta(choice.setdefault("message", {"role": "assistant", "tool_calls": []}), part["delta"])
    return body | {"choices": list(choices.values())}


def _add_delta(message: dict[str, Any], delta: Json) -> None:
    for key in ("content", "reasoning_content", "reasoning", "refusal"):
        if isinstance(delta.get(key), str):
            message[key] = (message.get(key) or "") + delta[key]
    for part in delta.get("tool_calls") or ():
        calls, index = message["tool_calls"], part.get("index")
        call = next((call for call in reversed(calls) if call["index"] == index), None)
        if call is None or (part.get("id") and call["id"] and part["id"] != call["id"]):  # some give all the same index
            call = {"index": index, "id": None, "function": {"name": "", "arguments": ""}}
            calls.append(call)
            calls.sort(key=lambda call: call["index"] or 0)
        function = part.get("function") or {}
        call["id"] = call["id"] or part.get("id")
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def _join_responses(events: list[dict[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    items: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event.get("response"), Mapping):
            body |= event["response"]
        match event.get("type"):
            case "response.output_item.added" | "response.output_item.done":
                items[event["output_index"]] = dict(event["item"])
            case "response.output_text.delta":
                item = items.setdefault(event["output_index"], {"type": "message", "role": "assistant"})
                written = "".join(part.get("text", "") for part in item.get("content") or ())
                item["content"] = [{"type": "output_text", "text": written + event["delta"]}]
            case "response.function_call_arguments.delta":
                item = items.setdefault(event["output_index"], {"type": "function_call"})
                item["arguments"] = (item.get("arguments") or "") + event["delta"]
    return body | ({"output": [items[index] for index in sorted(items)]} if items else {})


def _read_responses(body: Json) -> Answer:
    attributes = _identity(body)
    if (status := body.get("status")) and status != "in_progress":
        attributes[spans.FINISH_REASONS] = [status]
    return Answer(attributes, [from_responses_item(item) for item in body.get("output") or ()])


def _read_anthropic(body: Json) -> Answer:
    attributes = _identity(body)
    if reason := body.get("stop_reason"):
        attributes[spans.FINISH_REASONS] = [reason]
    return Answer(attributes, [from_anthropic(body)] if body.get("content") else [])


def _join_anthropic(events: list[dict[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {"content": []}
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        match event.get("type"):
            case "message_start":
                body |= {**event["message"], "content": []}
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                block, delta = blocks.setdefault(event["index"], {"type": "text"}), event["delta"]
                for key in ("text", "thinking"):
                    if key in delta:
                        block[key] = block.get(key, "") + delta[key]
                if "partial_json" in delta:
                    block["partial"] = block.get("partial", "") + delta["partial_json"]
            case "message_delta":
                body["stop_reason"] = event["delta"].get("stop_reason")
                body["usage"] = {**(body.get("usage") or {}), **(event.get("usage") or {})}
    for block in blocks.values():
        if partial := block.pop("partial", None):
            try:
                block["input"] = json.loads(partial)
            except ValueError:
                block["input"] = partial
    return body | {"content": list(blocks.values())}
