"""What may be asked, and how it becomes tokens and images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.runtime.text import Tokenizer
    from trtkit.runtime.vision_language import ImagePrompts, MergedPrompt

Prompt = str | list[int] | dict[str, Any]
"""Text, token ids, or `{"prompt": text}`, `{"prompt_token_ids": ids}`, `{"messages": [...]}`; with `images`, a list of
paths and PIL images, where the model takes them: the prompt has a placeholder for each."""

_KINDS = ("prompt_token_ids", "messages", "prompt")


@dataclass(frozen=True, eq=False)
class ReadPrompt:
    """A prompt as tokens. text: where it was given as one. merged: where the model takes images."""

    text: str | None
    ids: list[int]
    merged: MergedPrompt | None = None


class PromptReader:
    """Reads prompts for one bundle. images: None where it takes text only."""

    def __init__(self, tokenizer: Tokenizer | None, images: ImagePrompts | None = None) -> None:
        self._tokenizer, self._images = tokenizer, images

    def read(self, prompt: Prompt) -> ReadPrompt:
        """Return a prompt's tokens and images. Raises RequestError for what the model cannot take."""
        text, ids, images = self._read(prompt)
        if self._images is None:
            if images:
                raise RequestError("the model takes text only", "images", "give a bundle of a vision-language model")
            return ReadPrompt(text, ids)
        merged = self._images.merge(ids, images)
        return ReadPrompt(text, merged.ids, merged)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of a conversation."""
        return self._chat(messages, ())[1]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text. Raises RequestError where there is no tokenizer."""
        if self._tokenizer is None:
            raise RequestError("the bundle has no tokenizer", "prompt", "give token ids")
        return self._tokenizer.encode(text, add_special_tokens)

    def _read(self, prompt: Prompt) -> tuple[str | None, list[int], list[Any]]:
        """Return text, tokens with one placeholder an image, and images."""
        if isinstance(prompt, str):
            return prompt, self.encode(prompt), []
        if not isinstance(prompt, dict):
            return None, _checked_ids(prompt), []
        known = [key for key in _KINDS if prompt.get(key) is not None]
        if len(known) != 1:
            fix = "give one of `prompt`, `prompt_token_ids`, `messages`"
            raise RequestError(f"a prompt is one thing, {len(known)} are given", "prompt", fix)
        images = _checked_images(prompt.get("images"))
        if known == ["messages"]:
            return self._chat(prompt["messages"], images)
        text, ids, _ = self._read(prompt[known[0]])
        return text, ids, images

    def _chat(self, messages: Sequence[Mapping[str, Any]], images: Sequence[Any]) -> tuple[None, list[int], list[Any]]:
        """Return a conversation as `_read` returns a prompt."""
        if self._tokenizer is None:
            raise RequestError("the bundle has no tokenizer", "prompt", "give token ids")
        if self._images is None:
            return None, self._tokenizer.chat(messages), list(images)
        from trtkit.runtime.vision_language import split_messages

        plain, found = split_messages(messages, images)
        return None, self._tokenizer.chat(plain), found


def _checked_ids(ids: Any) -> list[int]:
    is_list = isinstance(ids, (list, tuple)) and all(isinstance(token, int) for token in ids)
    if not is_list:
        raise RequestError(f"a prompt cannot be a {type(ids).__name__}", "prompt", "give text or token ids")
    return list(ids)


def _checked_images(images: Any) -> list[Any]:
    """Return a prompt's images, one or a list of them."""
    if images is None:
        return []
    return list(images) if isinstance(images, (list, tuple)) else [images]
