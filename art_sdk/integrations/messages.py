"""Messages in the form of the GenAI conventions, from each provider's own form.

    {"role": "user", "parts": [{"type": "text", "content": "..."}]}

Part types: `text`, `reasoning`, `tool_call` {id, name, arguments}, `tool_call_response` {id, response},
`uri` {uri}, `blob` {mime_type, content (base64)}, `file` {file_id}. A part that is none of these is kept
as it came, so nothing is lost. Sound that a model made is kept as a `file`: by the id that the provider knows it
under, when that expires, and what is said.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

Message = dict[str, Any]
Part = dict[str, Any]


def text(content: str) -> Part:
    return {"type": "text", "content": content}


def user(words: str) -> Message:
    """A prompt or an input that is just words."""
    return {"role": "user", "parts": [text(words)]}


def from_openai(message: Mapping[str, Any]) -> Message:
    """A message of `/chat/completions`, of a request or of an answer."""
    role = message.get("role", "assistant")
    if role == "tool":
        response = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": "tool", "parts": [response]}
    parts: list[Part] = []
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        parts.append({"type": "reasoning", "content": reasoning})
    parts += _content_parts(message.get("content"))
    if audio := message.get("audio"):
        parts.append(_spoken(audio))
    if refusal := message.get("refusal"):
        parts.append({"type": "refusal", "content": refusal})
    for call in message.get("tool_calls") or ():
        function = call.get("function") or call.get("custom") or {}
        parts.append(_tool_call(call.get("id"), function.get("name"), function.get("arguments", function.get("input"))))
    return {"role": role, "parts": parts}


def from_responses_instructions(instructions: Any) -> Message:
    """The `instructions` of a request to `/responses`."""
    return {"role": "system", "parts": _content_parts(instructions)}


def from_responses_item(item: Mapping[str, Any]) -> Message:
    """One item of a request to, or of an answer of, `/responses`."""
    match item.get("type", "message"):
        case "message":
            return {"role": item.get("role", "assistant"), "parts": _content_parts(item.get("content"))}
        case "function_call":
            return {
                "role": "assistant",
                "parts": [_tool_call(item.get("call_id"), item.get("name"), item.get("arguments"))],
            }
        case "custom_tool_call":
            return {
                "role": "assistant",
                "parts": [_tool_call(item.get("call_id"), item.get("name"), item.get("input"))],
            }
        case "function_call_output" | "custom_tool_call_output":
            part = {"type": "tool_call_response", "id": item.get("call_id"), "response": item.get("output")}
            return {"role": "tool", "parts": [part]}
        case "reasoning":
            thoughts = item.get("content") or item.get("summary") or ()
            words = "".join(part.get("text", "") for part in thoughts)
            sealed = {key: item[key] for key in ("encrypted_content",) if item.get(key)}
            return {"role": "assistant", "parts": [{"type": "reasoning", "content": words} | sealed]}
        case _:
            return {"role": "assistant", "parts": [dict(item)]}


def from_anthropic(message: Mapping[str, Any]) -> Message:
    """A message of Anthropic's `/messages`, of a request or of an answer."""
    return {"role": message.get("role", "assistant"), "parts": _content_parts(message.get("content"))}


def anthropic_system(system: Any) -> Message:
    """The `system` of a request to `/messages`."""
    return {"role": "system", "parts": _content_parts(system)}


def _content_parts(content: Any) -> list[Part]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [text(content)]
    return [_part(part) for part in _mappings(content)]


def _part(part: Mapping[str, Any]) -> Part:
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return text(part.get("text", ""))
        case "thinking":
            sealed = {"signature": part["signature"]} if part.get("signature") else {}
            return {"type": "reasoning", "content": part.get("thinking", "")} | sealed
        case "refusal":
            return {"type": "refusal", "content": part.get("refusal", "")}
        case "image_url":
            return _image(part["image_url"]["url"])
        case "input_image" if part.get("image_url"):
            return _image(part["image_url"])
        case "image" | "document" if isinstance(part.get("source"), Mapping):
            return _source(part)
        case "input_audio":
            audio = part.get("input_audio", {})
            return {"type": "blob", "mime_type": f"audio/{audio.get('format')}", "content": audio.get("data")}
        case "tool_use":
            return _tool_call(part.get("id"), part.get("name"), part.get("input"))
        case "tool_result":
            return {"type": "tool_call_response", "id": part.get("tool_use_id"), "response": part.get("content")}
        case _:
            return dict(part)


def _image(url: str) -> Part:
    if url.startswith("data:") and ";base64," in url:
        mime_type, _, data = url.removeprefix("data:").partition(";base64,")
        return {"type": "blob", "mime_type": mime_type, "content": data}
    return {"type": "uri", "uri": url}


def _source(part: Mapping[str, Any]) -> Part:
    source = part["source"]
    match source.get("type"):
        case "base64":
            return {"type": "blob", "mime_type": source.get("media_type"), "content": source.get("data")}
        case "url":
            return {"type": "uri", "uri": source.get("url")}
        case "file":
            return {"type": "file", "file_id": source.get("file_id")}
        case _:
            return dict(part)


def _spoken(audio: Mapping[str, Any]) -> Part:
    found = {"file_id": audio.get("id"), "expires_at": audio.get("expires_at"), "transcript": audio.get("transcript")}
    return {"type": "file", "modality": "audio"} | {key: value for key, value in found.items() if value is not None}


def _tool_call(identity: Any, name: Any, arguments: Any) -> Part:
    if isinstance(arguments, str):
        with suppress(ValueError):  # where the model wrote broken JSON, keep its words
            arguments = json.loads(arguments)
    return {"type": "tool_call", "id": identity, "name": name, "arguments": arguments}


def _mappings(content: Any) -> Iterable[Mapping[str, Any]]:
    for part in content if isinstance(content, list | tuple) else [content]:
        yield part if isinstance(part, Mapping) else {"type": "text", "text": str(part)}
