"""Incremental detokenization, equal in the end to decoding all tokens at once; and stop strings."""

from __future__ import annotations

import codecs
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.runtime.text.tokenizer import Tokenizer

# Prompt tokens on which the answer's text may depend: a character has up to four bytes.
_TAIL = 32
# For decoders not known in detail, an incomplete character waits for this many tokens; after that it is invalid.
_PATIENCE = 8
_REPLACEMENT = "\ufffd"


class IncrementalDetokenizer:
    """Converts the tokens of one answer to text, piece by piece.

    The concatenated pieces equal the tokenizer's decoding of prompt and answer, minus the prompt's text. An incomplete
    character is held back; one that started in the prompt's last tokens is returned whole. Without a tokenizer all text
    is empty. The time per token does not grow with the answer.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        self._skipped = tokenizer.special_ids if tokenizer and skip_special_tokens else frozenset()
        self._stream = _stream(tokenizer)
        self._stream.begin(self._kept(prompt_ids[-_TAIL:]))
        self._has_tokens = False

    def add(self, tokens: Sequence[int]) -> str:
        """Return the text that is final so far."""
        kept = self._kept(tokens)
        self._has_tokens = self._has_tokens or bool(kept)
        return self._stream.add(kept)

    def finish(self) -> str:
        """Return the text held back; an incomplete character becomes a replacement character."""
        return self._stream.finish() if self._has_tokens else ""

    def _kept(self, tokens: Sequence[int]) -> list[int]:
        return [int(token) for token in tokens if int(token) not in self._skipped]


class _Stream(Protocol):
    def begin(self, prompt: list[int]) -> None: ...

    def add(self, tokens: list[int]) -> str: ...

    def finish(self) -> str: ...


def _stream(tokenizer: Tokenizer | None) -> _Stream:
    """Return the kind of stream for a tokenizer; without one there is no text."""
    if tokenizer is None:
        return _Bytes([])
    return _Bytes(tokenizer.byte_level_table) if tokenizer.byte_level_table else _Window(tokenizer)


class _Bytes:
    """Byte-level BPE: each token is a byte sequence, independent of its neighbors; the text is their UTF-8."""

    def __init__(self, table: list[bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self, prompt: list[int]) -> None:
        self.add(prompt)

    def add(self, tokens: list[int]) -> str:
        size = len(self._table)
        return self._utf8.decode(b"".join(self._table[token] for token in tokens if 0 <= token < size))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Window:
    """Any other tokenizer: decode the previous token together with the new ones, and take the added text.

    The previous token is needed because decoders treat a text's first token differently: SentencePiece drops its space,
    WordPiece puts none before it. Byte tokens are assembled here. If they are not valid UTF-8, transformers replaces
    every byte of the run; here a character that was complete before the invalid byte is kept, since it may have been
    streamed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._before: list[int] = []
        self._waiting: list[int] = []

    def begin(self, prompt: list[int]) -> None:
        self.add(prompt)
        self._before, self._waiting = (self._waiting, []) if self._waiting else (self._before, [])

    def add(self, tokens: list[int]) -> str:
        fallbacks = self._tokenizer.byte_fallbacks
        known = (token for token in tokens if token in self._tokenizer.ids)
        runs = groupby(known, key=lambda token: token in fallbacks)
        return "".join(self._add_bytes(list(run)) if is_bytes else self._add_words(list(run)) for is_bytes, run in runs)

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True) + self._release()

    def _add_bytes(self, tokens: list[int]) -> str:
        if not self._before and all(token in self._tokenizer.byte_fallbacks for token in self._waiting):
            self._waiting += tokens  # the text's very first tokens: decoders may strip them
            return ""
        fallbacks = self._tokenizer.byte_fallbacks
        return self._release() + self._utf8.decode(b"".join(fallbacks[token] for token in tokens))

    def _add_words(self, tokens: list[int]) -> str:
        broken = self._utf8.decode(b"", final=True)
        self._waiting += tokens
        is_open = len(self._waiting) < _PATIENCE and self._text().endswith(_REPLACEMENT)
        return broken if is_open else broken + self._release()

    def _release(self) -> str:
        """Return the text of the waiting tokens."""
        if not self._waiting:
            return ""
        text = self._text()
        self._before, self._waiting = self._waiting[-1:], []
        return text

    def _text(self) -> str:
        before, after = (self._decode(ids) for ids in (self._before, self._before + self._waiting))
        if after.startswith(before):
            return after[len(before) :]
        pairs = enumerate(zip(before, after, strict=False))  # a broken character became whole
        return after[next((index for index, (old, new) in pairs if old != new), len(after)) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""


class StopStrings:
    """Watches one answer's text for stop strings, also across pieces.

    The answer ends where a stop string is first complete; if several end there, the longest counts. Text that may still
    become a stop string is held back. matched: the stop string found. include: keep it in the text.
    """

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        self._stop = tuple(stop)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Return the text that is certainly not part of a stop string; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        match = self._find(text)
        if match is not None:
            start, end = match
            self._held, self.matched = "", text[start:end]
            return text[: end if self._include else start]
        kept = len(text) - self._open(text)
        self._held = text[kept:]
        return text[:kept]

    def finish(self) -> str:
        """Return the text held back: no more text will complete a stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, int] | None:
        """Return the start and end of the match that ends first."""
        starts = ((text.find(stop), len(stop)) for stop in self._stop)
        spans = [(start, start + length) for start, length in starts if start >= 0]
        return min(spans, key=lambda span: (span[1], span[0]), default=None)

    def _open(self, text: str) -> int:
        """Return the length of the longest suffix that may begin a stop string."""
        longest = max(map(len, self._stop)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
