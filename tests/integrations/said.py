"""Messages as they are sent, and as they are kept."""

from typing import Any


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def tool_call(city: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": f"call_{city.lower()}", "name": "get_weather", "arguments": {"city": city}}
