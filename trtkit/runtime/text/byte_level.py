"""Tokens that stand for bytes: all of them in byte-level BPE (GPT-2's), `<0x0A>` and its like in SentencePiece."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


def decoders(hf: Any) -> list[str]:
    """Return the kinds of a tokenizer's decoders in order; none where transformers decodes in Python."""
    backend = getattr(hf, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return []
    return _kinds(json.loads(backend.decoder.__getstate__()))


def _kinds(decoder: Mapping[str, Any]) -> list[str]:
    if decoder["type"] == "Sequence":
        return [kind for part in decoder["decoders"] for kind in _kinds(part)]
    return [decoder["type"]]


def byte_level_table(vocabulary: Mapping[str, int]) -> list[bytes]:
    """Return each token's bytes in byte-level BPE, by id; empty where an id has no token."""
    of_char = _byte_of_char()
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for content, token in vocabulary.items():
        table[token] = _bytes(content, of_char)
    return table


def byte_fallbacks(vocabulary: Mapping[str, int]) -> dict[int, bytes]:
    """Return the bytes of SentencePiece's byte tokens, by id."""
    matches = ((token, _BYTE_TOKEN.fullmatch(content)) for content, token in vocabulary.items())
    return {token: bytes.fromhex(match[1]) for token, match in matches if match}


def _bytes(content: str, of_char: Mapping[str, int]) -> bytes:
    """Return a token's bytes; one with a character outside the alphabet, as an added token may have, is plain text."""
    values = [of_char.get(char) for char in content]
    return content.encode() if None in values else bytes(value for value in values if value is not None)


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's alphabet (`bytes_to_unicode`): printable bytes stand for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {chr(byte): byte for byte in printable}
    return shown | {chr(0x100 + index): byte for index, byte in enumerate(others)}
