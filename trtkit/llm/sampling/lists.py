"""Reading settings that are lists: words, texts, token ids, biases, functions, choices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from trtkit.runtime.text.limits import (
    MAX_FLOAT,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_WORD_LENGTH,
    MAX_WORDS,
    check_count,
    check_text,
    shown,
)


def _items(value: Any, of: str, limit: int) -> Sequence[Any]:
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        check_count(len(value), limit, of)
        return tuple(value)
    raise ValueError(f"`{shown(value)}` is not a list of {of}")


def _token_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ValueError(f"`{shown(value)}` is not a token id, a whole number of at least 0")
    return int(value)


def read_ids(value: Any) -> tuple[int, ...]:
    """Return token ids; a single one is a list of one."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return (_token_id(value),)
    return tuple(_token_id(item) for item in _items(value, "token ids", MAX_STOP_TOKENS))


def read_texts(value: Any, most: int = MAX_STOPS, longest: int = MAX_STOP_LENGTH) -> tuple[str, ...]:
    """Return texts, none of them empty; a single one is a list of one."""
    texts = (value,) if isinstance(value, str) else _items(value, "texts", most)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"`{shown(text)}` is not a non-empty text")
        check_count(len(text), longest, "characters of a text")
        check_text(text)
    return tuple(texts)


def read_words(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Return words: texts or token ids, none of them empty."""
    return tuple(_word(item) for item in _items(value, "words", MAX_WORDS))


def _word(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return read_texts(value, MAX_WORDS, MAX_WORD_LENGTH)[0]
    ids = tuple(_token_id(item) for item in _items(value, "token ids", MAX_WORD_LENGTH))
    if not ids:
        raise ValueError("`[]` has no tokens")
    return ids


def read_bias(value: Any) -> dict[int, float]:
    """Return token ids with the finite number to add to each."""
    if not isinstance(value, Mapping):
        raise ValueError(f"`{shown(value)}` is not a mapping of token ids to numbers")
    return {_token_id(key): _finite(key, bias) for key, bias in value.items()}


def _finite(key: Any, bias: Any) -> float:
    if isinstance(bias, bool) or not isinstance(bias, Real) or not math.isfinite(bias):
        raise ValueError(f"the bias of token {key}, `{shown(bias)}`, is not a finite number")
    if abs(float(bias)) > MAX_FLOAT:
        raise ValueError(f"the bias of token {key}, `{shown(bias)}`, is beyond {MAX_FLOAT:g}")
    return float(bias)


def read_callables(value: Any) -> tuple[Any, ...]:
    """Return functions."""
    items = _items(value, "functions", MAX_WORDS)
    for item in items:
        if not callable(item):
            raise ValueError(f"`{shown(item)}` cannot be called")
    return tuple(items)


def read_choice(value: Any) -> tuple[str, ...] | None:
    """Return the texts to choose from, at least one."""
    if value is None:
        return None
    if isinstance(value, str) or not _items(value, "texts", MAX_WORDS):
        raise ValueError(f"`{shown(value)}` is not a non-empty list of texts")
    return read_texts(value, MAX_WORDS, MAX_WORD_LENGTH)
