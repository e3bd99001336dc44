"""Messages as a provider's API takes them, from the form in which they are stored (see `integrations/messages.py`)."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Form = Literal["genai", "openai", "anthropic"]
FORMS: tuple[Form, ...] = ("genai", "openai", "anthropic")

Message = dict[str, Any]


def to_openai(messages: Iterable[Any]) -> list[Message]:
    """Messages of `/chat/completions`. Arguments of tool calls are JSON text there."""
    return [converted for message in messages for converted in _openai(*_role_and_parts(message))]


def to_openai_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool definition of `/chat/completions`, from that of any API."""
    if "function" in tool or not tool.get("name"):
        return dict(tool)
    parameters = tool.get("parameters") or tool.get("input_schema") or {"type": "object", "properties": {}}
    described = {"name": tool["name"], "description": tool.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": described}


def to_anthropic(messages: Iterable[Any]) -> list[Message]:
    """Messages of `/messages`. A system message stays one: it is the request's `system`.

    Results of tools are the user's, and what one side says in a row is one message, as that API wants it.
    """
    made: list[Message] = []
    for message in messages:
        role, parts = _role_and_parts(message)
        if role != "system":
            role = "assistant" if role == "assistant" else "user"
        blocks = [block for part in parts if (block := _block(part)) is not None]
        if made and made[-1]["role"] == role:
            made[-1]["content"] += blocks
        elif blocks:
            made.append({"role": role, "content": blocks})
    return [{**message, "content": _words(message["content"])} for message in made]


def _role_and_parts(message: Any) -> tuple[str, list[dict[str, Any]]]:
    """Of a message; one that a mask has made something else is kept as a user's words."""
    if isinstance(message, Mapping) and isinstance(message.get("parts", []), list):
        parts = message.get("parts", [])
        return str(message.get("role", "user")), [p if isinstance(p, dict) else _text(p) for p in parts]
    return "user", [_text(message)]


def _text(value: Any) -> dict[str, Any]:
    return {"type": "text", "content": _written(value)}


def _openai(role: str, parts: list[dict[str, Any]]) -> Iterable[Message]:
    calls = [_openai_call(part) for part in parts if part.get("type") == "tool_call"]
    for part in parts:
        if part.get("type") == "tool_call_response":
            yield {"role": "tool", "tool_call_id": part.get("id"), "content": _written(part.get("response"))}
    content = [found for part in parts if (found := _openai_part(part)) is not None]
    reasoning = "".join(str(part.get("content", "")) for part in parts if part.get("type") == "reasoning")
    if not content and not calls and not reasoning and parts:
        return
    made: Message = {"role": "user" if role == "tool" else role, "content": _words(content) if content else None}
    if reasoning:
        made["reasoning_content"] = reasoning
    if calls:
        made["tool_calls"] = calls
    if made["content"] is None and not calls:
        made["content"] = ""
    yield made


def _openai_call(part: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": part.get("name"), "arguments": _written(part.get("arguments"))}
    return {"id": part.get("id"), "type": "function", "function": function}


def _openai_part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    match part.get("type"):
        case "tool_call" | "tool_call_response" | "reasoning":
            return None
        case "text":
            return {"type": "text", "text": part.get("content", "")}
        case "blob" if str(part.get("mime_type", "")).startswith("audio/"):
            audio = {"format": str(part["mime_type"]).removeprefix("audio/"), "data": part.get("content")}
            return {"type": "input_audio", "input_audio": audio}
        case "blob":
            url = f"data:{part.get('mime_type')};base64,{part.get('content')}"
            return {"type": "image_url", "image_url": {"url": url}}
        case "uri":
            return {"type": "image_url", "image_url": {"url": part.get("uri")}}
        case "file":
            return {"type": "file", "file": {"file_id": part.get("file_id")}}
        case "refusal":
            return {"type": "refusal", "refusal": part.get("content", "")}
        case _:
            return dict(part)


def _block(part: Mapping[str, Any]) -> dict[str, Any] | None:
    match part.get("type"):
        case "text" | "refusal":
            words = part.get("content", "")
            return {"type": "text", "text": words} if words else None  # that API refuses an empty one
        case "reasoning":
            sealed = {"signature": part["signature"]} if part.get("signature") else {}
            return {"type": "thinking", "thinking": part.get("content", ""), **sealed}
        case "tool_call":
            arguments = part.get("arguments")
            given = (
                arguments if isinstance(arguments, dict) else {} if arguments in (None, "") else {"input": arguments}
            )
            return {"type": "tool_use", "id": part.get("id"), "name": part.get("name"), "input": given}
        case "tool_call_response":
            return {"type": "tool_result", "tool_use_id": part.get("id"), "content": _written(part.get("response"))}
        case "blob":
            source = {"type": "base64", "media_type": part.get("mime_type"), "data": part.get("content")}
            return {"type": _medium(part), "source": source}
        case "uri":
            return {"type": "image", "source": {"type": "url", "url": part.get("uri")}}
        case "file":
            return {"type": "document", "source": {"type": "file", "file_id": part.get("file_id")}}
        case _:
            return dict(part)


def _medium(part: Mapping[str, Any]) -> str:
    return "image" if str(part.get("mime_type", "")).startswith("image/") else "document"


def _words(content: list[dict[str, Any]]) -> Any:
    """Text alone as a string, as people write it."""
    if all(part.keys() == {"type", "text"} for part in content) and len(content) == 1:
        return content[0]["text"]
    return content


def _written(value: Any) -> str:
    """What an API wants as text: JSON for what is none."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
