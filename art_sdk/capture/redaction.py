"""What must not be kept is masked before the journal: by the user's `mask` function, and where it looks like a secret.

Fails closed: content whose `mask` function raises is not kept at all. A span with masked content is
marked `art.masked`, and its completion is never trained on: a model would learn to say the mask.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..settings import get_settings
from .guard import count_error

Mask = Callable[[Any], Any]

_mask: Mask | None = None


def set_mask(mask: Mask | None) -> None:
    """Pass every message, argument and result through `mask` before it is kept: JSON-like data in, the same out."""
    global _mask
    _mask = mask


# (what it is, text that must be there for it to be there, the secret)
_KINDS: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "keys": (
        (("sk-", "sk_", "rk_", "pk_"), r"\b(?:sk|rk|pk)[-_](?:[A-Za-z0-9]+[-_])*[A-Za-z0-9_-]{20,}"),
        (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
        (
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
            r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
        ),
        (tuple(f"xox{kind}-" for kind in "abeoprs"), r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
        (("AIza",), r"\bAIza[0-9A-Za-z_-]{35}"),
        (("hf_", "glpat-", "lsv2_"), r"\b(?:hf_[A-Za-z]{30,}|glpat-[\w-]{20,}|lsv2_[a-z]{2}_[0-9a-f_]{32,})"),
        (("PRIVATE KEY",), r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\\n|\s)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
        (("eyJ",), r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    ),
    "bearer": ((("earer ", "EARER "), r"(?i:\bbearer\s+)(?=[\w.~+/-]*\d)[\w.~+/-]{16,}=*"),),
    "email": ((("@",), r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),),
    "cards": (((), r"(?<![\d.])\d(?:[ -]?\d){12,}(?!\.?\d)"),),
}
_LABELS = {"keys": "key", "bearer": "bearer token", "email": "e-mail", "cards": "card"}


@lru_cache(maxsize=8)
def _patterns(kinds: frozenset[str]) -> tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...]:
    return tuple(
        (f"[{_LABELS[kind]}]", markers, re.compile(pattern))
        for kind, alternatives in _KINDS.items()
        if kind in kinds
        for markers, pattern in alternatives
    )


def redact_text(text: str) -> str:
    """`text` without what looks like a secret: `[key]`, `[card]` … in its place."""
    for label, markers, pattern in _patterns(get_settings().redactions):
        if markers and not any(marker in text for marker in markers):
            continue
        text = pattern.sub(_mask_cards if label == "[card]" else label, text)
    return text


def may_hold_secret(data: bytes) -> bool:
    """Whether some text in this JSON could be a secret: cheap, so that clean content costs next to nothing."""
    kinds = get_settings().redactions
    return (
        ("keys" in kinds and _may_hold_key(data))
        or ("bearer" in kinds and (b"earer " in data or b"EARER " in data))
        or ("email" in kinds and b"@" in data)
        or ("cards" in kinds and _LONG_NUMBER.search(data) is not None)
    )


def _may_hold_key(data: bytes) -> bool:
    """Looks at what stands around a few rare characters: one fast pass each, where a search for every beginning of a
    key would be a dozen slow ones."""
    for separator in (b"-", b"_"):
        if separator in data:
            for part in data.split(separator)[:-1]:
                if part[-2:] in _ENDS and _KEY_BEGINS.search(part[-12:]):
                    return True
    if b"A" in data and any(part[:3] in _AFTER_A or part[:6] == b"TE KEY" for part in data.split(b"A")[1:]):
        return True
    return b"J" in data and any(part[-2:] == b"ey" for part in data.split(b"J")[:-1])


_ENDS = frozenset(b"sk rk pk at hf v2 xa xb xe xo xp xr xs hp ho hu hs hr".split())
_KEY_BEGINS = re.compile(
    rb"(?:^|[^A-Za-z0-9]|\\[bfnrt])(?:[srp]k|pat|hf|glpat|lsv2|xox[abeoprs]|gh[pousr])$"
)  # as in `_KINDS`, up to the separator; the second, in what JSON escapes
_AFTER_A = frozenset({b"KI", b"SI", b"Iza"})  # AKIA, ASIA (up to their second A), AIza
_LONG_NUMBER = re.compile(rb"\d(?:[ -]?\d){12}")


def _mask_cards(found: re.Match[str]) -> str:
    """Mask what could be a card's number in a row of digits: some of its neighbouring blocks."""
    return _without_cards(re.split(r"([ -])", found.group()))


def _without_cards(blocks: list[str]) -> str:
    """`blocks` are digits, separator, digits …"""
    for start in range(0, len(blocks), 2):
        for end in range(len(blocks), start, -2):
            if _is_card("".join(blocks[start:end:2])):
                return "".join([*blocks[:start], "[card]", *blocks[end : end + 1], _without_cards(blocks[end + 1 :])])
    return "".join(blocks)


def _is_card(number: str) -> bool:
    digits = [int(digit) for digit in number]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[-2::-2]]  # Luhn's check, as on every card
    return 13 <= len(digits) <= 19 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def redact(value: Any) -> Any:
    """`value` (JSON-like data) with every text in it redacted."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {redact_text(key) if isinstance(key, str) else key: redact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redact(item) for item in value]
    return value


def get_mask() -> Mask | None:
    return _mask


def masked(value: Any) -> Any:
    """`value` as the user's `mask` function gives it back; what it fails on is left out altogether."""
    assert _mask is not None
    try:
        return _mask(value)
    except Exception as error:
        count_error("mask", error)
        return {"omitted": f"the mask function raised {type(error).__name__}"}


def structure(value: Any) -> Any:
    """What is left of content without its words: roles, kinds of parts, tool names, ids and sizes."""
    if isinstance(value, dict) and isinstance(value.get("parts"), list):
        return {"role": value.get("role"), "parts": [_part_structure(part) for part in value["parts"]]}
    if isinstance(value, dict) and isinstance(function := value.get("function", value), dict) and "name" in function:
        return {"name": function["name"], "omitted": "content"}  # a tool's definition
    return {"omitted": "content", "type": type(value).__name__, "size": _size(value)}


def _part_structure(part: Any) -> Any:
    if not isinstance(part, dict):
        return {"omitted": "content"}
    kept = {key: part[key] for key in ("type", "id", "name", "mime_type") if key in part}
    words = next((part[key] for key in ("content", "arguments", "response", "uri") if part.get(key) is not None), "")
    return kept | {"size": _size(words)}


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | dict) else 1
