"""Answers that follow a JSON schema, an expression, a grammar or a choice of texts."""

from __future__ import annotations

from typing import Any


class GuideFactory:
    """Makes guides for one tokenizer, transformers' fast kind."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
