"""Prompts of a model whose encoder reads text: the prompt is the encoder's, and the answer begins with one token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import RequestError
from trtkit.llm.encoded.prompts import EncoderPrompt, EncoderPrompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.encoded.prompts import PromptTokenizer


class TextPrompts(EncoderPrompts):
    """Reads prompts whose text, or token ids, the encoder takes."""

    def read(self, prompt: object, reader: PromptTokenizer) -> EncoderPrompt:
        """Return a prompt as both networks take it. Raises RequestError for one that cannot be used."""
        if isinstance(prompt, dict):
            other = [name for name in ("audio", "messages") if prompt.get(name) is not None]
            if other:
                fix = 'give text, or {"prompt": "translate English to German: ..."}'
                raise RequestError(f"the model takes no {other[0]}", other[0], fix)
        text, ids = reader.text_and_ids(prompt)
        return self.merge([self._start], ids, text)

    def ids(self) -> list[int]:
        """Return the token that an answer begins with."""
        return [self._start]

    def merge(self, ids: Sequence[int], source: Sequence[int], text: str | None = None) -> EncoderPrompt:
        """Return the decoder's tokens with those of the encoder. Raises RequestError for a text of a wrong length."""
        limit = self._record.length
        if not 0 < len(source) <= limit:
            fix = "shorten it, or build with a larger `llm.max_source_length`" if source else "give text or token ids"
            raise RequestError(f"the prompt has {len(source)} tokens; the encoder takes 1 to {limit}", "prompt", fix)
        return EncoderPrompt(list(ids), np.asarray(source, np.int64), text)
