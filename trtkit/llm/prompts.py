"""The forms of a prompt, and how they become tokens and images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, ProblemsError, RequestError
from trtkit.llm.engine.request import too_long
from trtkit.runtime.text.limits import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.encoded import EncoderPrompt, EncoderPrompts
    from trtkit.llm.images import ImagePrompts, MergedPrompt
    from trtkit.llm.sampling.settings import Settings
    from trtkit.runtime.text import Tokenizer

Prompt = str | list[int] | dict[str, Any]
"""Text, token ids, or `{"prompt": text}`, `{"prompt_token_ids": ids}`, `{"messages": [...]}`; with `images`, a list of
paths and PIL images, where the model takes them: the prompt has a placeholder for each. A speech recognizer takes
`{"audio": path or samples}`, with `language` and `task` if it has several. The prompt of an encoder-decoder model of
text is what its encoder reads."""

PROMPT_KINDS = ("prompt", "messages", "prompt_token_ids")
# Longer text is refused before it is tokenized: a token has four or five characters, rarely 32.
CHARACTERS_PER_TOKEN, MIN_CHARACTERS = 32, 65_536
MAX_IMAGES = 64


@dataclass(frozen=True, eq=False)
class ReadPrompt:
    """A prompt as tokens. text: if the prompt was a text. merged: with images inserted, if the model takes any.

    encoded: with the encoder's input, if the model has an encoder; its text or audio is the prompt, and `ids` start the
    answer.
    """

    text: str | None
    ids: list[int]
    images: tuple[Any, ...] = ()
    merged: MergedPrompt | None = None
    encoded: EncoderPrompt | None = None


@dataclass(frozen=True, eq=False)
class PreparedPrompt:
    """A prompt as tokens, with its settings resolved against the model, so that nothing needs to be read any more.

    settings: of its first answer. request_id: of its output; generated if None. where: its location in a file or a
    list, with which its errors start.
    """

    read: ReadPrompt
    settings: Settings
    request_id: str | None = None
    where: str = ""


AnyPrompt = Prompt | PreparedPrompt


class PromptsError(ProblemsError, RequestError):
    """Prompts that cannot be served, with every problem of theirs."""


def raise_prompt_problems(problems: list[Problem]) -> None:
    """Raise PromptsError if there is a problem."""
    if problems:
        raise PromptsError("the prompts cannot be used; nothing was run", problems)


def problems_of(error: RequestError, where: str) -> list[Problem]:
    """Return the problems of one prompt, each prefixed with the prompt's location."""
    problems = error.problems if isinstance(error, ProblemsError) else [Problem(error.what, error.where, error.fix)]
    return [replace(problem, where=f"{where}: {problem.where}" if problem.where else where) for problem in problems]


class PromptReader:
    """Reads prompts for one bundle. max_length: tokens that a slot holds, or that the encoder takes.

    images: None if it takes none. encoded: None if it has no encoder.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        images: ImagePrompts | None,
        max_length: int,
        encoded: EncoderPrompts | None = None,
    ) -> None:
        self._tokenizer, self._images, self._max_length, self._encoded = tokenizer, images, max_length, encoded

    def read(self, prompt: Prompt) -> ReadPrompt:
        """Return a prompt's tokens with its images inserted. Raises RequestError for an invalid prompt."""
        return self.merge(self.tokens(prompt))

    def tokens(self, prompt: Prompt) -> ReadPrompt:
        """Return a prompt's tokens and its images. Raises RequestError for what the model cannot take."""
        if self._encoded is not None:
            encoded = self._encoded.read(prompt, self)
            return ReadPrompt(encoded.text, encoded.ids, encoded=encoded)
        if isinstance(prompt, dict) and prompt.get("audio") is not None:
            raise RequestError("the model takes no audio", "audio", "give a bundle of a speech recognizer")
        text, ids, images = self._read(prompt)
        return ReadPrompt(text, ids, tuple(images))

    def merge(self, read: ReadPrompt) -> ReadPrompt:
        """Return a prompt with its images inserted. Image processors may compute with torch."""
        if self._images is None:
            return read
        merged = self._images.merge(read.ids, read.images)
        return replace(read, ids=merged.ids, merged=merged)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text. Raises RequestError if there is no tokenizer."""
        if self._tokenizer is None:
            raise RequestError("the bundle has no tokenizer", "prompt", "give token ids")
        return self._tokenizer.encode(text, add_special_tokens)

    def text_and_ids(self, prompt: object) -> tuple[str | None, list[int]]:
        """Return the text, if it was given as one, and the tokens of a prompt without images. Raises RequestError."""
        text, ids, _ = self._read(prompt)
        return text, ids

    def _read(self, prompt: object) -> tuple[str | None, list[int], list[Any]]:
        """Return text, tokens with one placeholder an image, and images."""
        if isinstance(prompt, str):
            self._check_length(len(prompt))
            return prompt, self.encode(prompt), []
        if not isinstance(prompt, dict):
            return None, self.checked_ids(prompt), []
        kinds = [key for key in PROMPT_KINDS if prompt.get(key) is not None]
        if len(kinds) != 1:
            fix = "give one of `prompt`, `prompt_token_ids`, `messages`"
            raise RequestError(f"a prompt takes exactly one kind of input; got {len(kinds)}", "prompt", fix)
        images = _checked_images(prompt.get("images"))
        if images and self._images is None:
            raise RequestError("the model takes text only", "images", "give a bundle of a vision-language model")
        if kinds == ["messages"]:
            return self._chat(prompt["messages"], images)
        text, ids, _ = self._read(prompt[kinds[0]])
        return text, ids, images

    def _chat(self, messages: Sequence[Mapping[str, Any]], images: Sequence[Any]) -> tuple[None, list[int], list[Any]]:
        """Return a conversation as `_read` returns a prompt."""
        if self._tokenizer is None:
            raise RequestError("the bundle has no tokenizer", "prompt", "give token ids")
        try:
            self._check_length(characters(messages))
            if self._images is not None:
                from trtkit.llm.images import split_messages

                messages, images = split_messages(messages, images)
            return None, self._tokenizer.chat(messages), list(images)
        except RecursionError:
            raise RequestError("the messages are nested too deeply", "messages", "send plain ones") from None

    def checked_ids(self, ids: object) -> list[int]:
        """Return token ids as a list. Raises RequestError for anything else, and for too many."""
        if not isinstance(ids, (list, tuple)):
            raise RequestError(f"a prompt cannot be a {type(ids).__name__}", "prompt", "give text or token ids")
        if len(ids) > self._max_length:
            raise too_long(len(ids), self._max_length, "prompt")
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, Integral):
                what = f"`{shown(token)}` is not a token id: prompts are whole numbers"
                raise RequestError(what, "prompt", "give text or token ids")
        return [int(token) for token in ids]

    def _check_length(self, characters: int) -> None:
        """Raise RequestError for text that is too long to be tokenized."""
        limit = max(MIN_CHARACTERS, CHARACTERS_PER_TOKEN * self._max_length)
        if characters > limit:
            what = f"the prompt has {characters} characters; at most {limit} are read"
            fix = f"shorten it: a slot holds {self._max_length} tokens"
            raise RequestError(what, fix=fix)


def characters(value: Any) -> int:
    """Return the characters of a prompt or its messages, keys of objects included; any other value counts as one."""
    if isinstance(value, Mapping):
        return sum(len(str(key)) + characters(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(characters, value))
    return len(value) if isinstance(value, str) else 1


def _checked_images(images: Any) -> list[Any]:
    """Return a prompt's images, one or a list of them."""
    if images is None:
        return []
    listed = list(images) if isinstance(images, (list, tuple)) else [images]
    if len(listed) > MAX_IMAGES:
        raise RequestError(f"{len(listed)} images exceed the limit of {MAX_IMAGES}", "images", "give fewer")
    return _decoded(listed)


def _decoded(images: list[Any]) -> list[Any]:
    """Return images, decoded if they are a file's bytes. Raises RequestError for too many pixels."""
    from trtkit.inputs.images import MAX_PIXELS, decode_image

    left = MAX_PIXELS
    for index, image in enumerate(images):
        if isinstance(image, bytes):
            images[index] = decode_image(image, f"image {index}")
            left -= images[index].width * images[index].height
        if left < 0:
            what = f"the images have more than {MAX_PIXELS} pixels in total"
            raise RequestError(what, "images", "give fewer or smaller ones")
    return images
