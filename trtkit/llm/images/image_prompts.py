"""Prompts with images: from messages to text and tokens with placeholders, and the positions of images."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import RequestError
from trtkit.inputs.vision_language import ImageForm, ImageReader, array_key
from trtkit.llm.soft_tokens import SoftTokens, run_ends, runs_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtkit.bundle.records import ImagesRecord
    from trtkit.inputs.vision_language import PreparedImage
    from trtkit.llm.images.tower import VisionTower
    from trtkit.llm.sequences import Ints
    from trtkit.runtime.text import Tokenizer


# How a message's content may carry its image: trtkit's form, and those of other clients.
_IMAGE_KEYS = ("image", "path")


@dataclass(frozen=True, eq=False)
class MergedPrompt:
    """A prompt's tokens, with a placeholder for each soft token of its images."""

    ids: list[int]
    images: tuple[PreparedImage, ...] = ()


class ImagePrompts:
    """Reads the prompts of a model that takes images; this does not need the vision tower.

    folder: with the image processor's files.
    """

    def __init__(self, record: ImagesRecord, folder: Path, tokenizer: Tokenizer | None) -> None:
        self._record, self._tokenizer = record, tokenizer
        form = ImageForm(
            record.layout,
            record.pixel_shape,
            record.tokens_per_image,
            record.merge_size,
            record.window_size,
            record.max_tokens,
            record.position_side,
        )
        self._reader = ImageReader(form, folder)

    def merge(self, ids: Sequence[int], images: Sequence[Any]) -> MergedPrompt:
        """Return a prompt's tokens with the images inserted. Raises RequestError if they do not fit."""
        prepared = tuple(self._reader.prepare(image) for image in images)
        expanded = expand(ids, prepared, self._record, self._tokenizer)
        if self._record.max_block:
            check_runs(places_of(expanded, self._record), self._record.max_block)
        return MergedPrompt(expanded, prepared)

    def soft_tokens(self, prompt: MergedPrompt, tower: VisionTower) -> SoftTokens | None:
        """Run the tower; return the vectors for a prompt's placeholders, None if it has no images."""
        if not prompt.images:
            return None
        indices = places_of(prompt.ids, self._record)
        keys = np.concatenate([image.key + np.arange(image.tokens) for image in prompt.images])
        rope = ends = None
        if self._record.max_block:
            ends = run_ends(indices)
            keys = np.concatenate([array_key(run) + np.arange(len(run)) for run in runs_of(keys, ends)])
        if self._record.has_grid_positions:
            rope = rope_positions(len(prompt.ids), indices, prompt.images)
        return SoftTokens(indices, tower.soft_tokens(prompt.images), keys, rope, ends)


def split_messages(
    messages: Sequence[Mapping[str, Any]], files: Sequence[Any] = ()
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return messages as chat templates of vision-language models read them, and their images in order.

    Content becomes a list of `{"type": "text", "text": ...}` and `{"type": "image"}`. An image without a file of its
    own takes the next of `files`. Raises RequestError for content of another kind and for images left over.
    """
    left, placed, read = list(files), [], []
    for message in messages:
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list):
            read.append(dict(message))
            continue
        for part in parts:
            if _kind(part) == "image":
                placed.append(_image_of(part, left))
        kept = [{"type": "image"} if _kind(part) == "image" else part for part in parts]
        read.append({**message, "content": kept})
    if left:
        what = f"{len(left)} images have no place in any message"
        raise RequestError(what, "images", 'add {"type": "image"} to the content of a message for each')
    return read, placed


def _kind(part: Any) -> str:
    """Return a content part's type. Raises RequestError for one that is neither text nor an image."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return "text"
    if kind != "image":
        shown = part if not isinstance(part, dict) else {key: part[key] for key in ("type",) if key in part}
        fix = 'write {"type": "text", "text": "..."} or {"type": "image", "path": "photo.jpg"}'
        raise RequestError(f"message content cannot be {shown}", "messages", fix)
    return "image"


def _image_of(part: Mapping[str, Any], left: list[Any]) -> Any:
    """Return an image part's own image, or else the next of those that are left."""
    source = next((part[key] for key in _IMAGE_KEYS if part.get(key) is not None), None)
    if source is not None:
        return source
    if not left:
        what = "a message has an image without a file, and `images` has none left"
        raise RequestError(
            what, "messages", 'give its path: {"type": "image", "path": "photo.jpg"}, or add it to `images`'
        )
    return left.pop(0)


@dataclass(frozen=True)
class TileTokens:
    """The texts around an image's tiles, as transformers' processors write them."""

    around: str
    whole: str

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TileTokens:
        """Return the texts that a tokenizer names, or else the usual ones."""
        around = getattr(tokenizer.hf, "fake_image_token", "<fake_token_around_image>")
        return cls(around, getattr(tokenizer.hf, "global_image_token", "<global-img>"))


_AROUND = {"start": "<img>", "end": "</img>"}
"""InternVL's tokens around an image's crops, if its tokenizer does not name them."""


def expand(
    ids: Sequence[int], images: Sequence[PreparedImage], record: ImagesRecord, tokenizer: Tokenizer | None
) -> list[int]:
    """Return a prompt with a placeholder for every soft token.

    ids: with one placeholder per image, or with all of them already. Raises RequestError if the numbers do not match.
    """
    count = sum(token == record.image_token_id for token in ids)
    total = sum(image.tokens for image in images)
    if count == total:
        return list(ids)
    if record.frame is not None and count == 0:
        return _framed(ids, images, record, tokenizer)
    if count != len(images):
        raise _mismatch(count, images, record, tokenizer)
    expanded, left = [], iter(images)
    for token in ids:
        if token == record.image_token_id:
            expanded += _tokens_of(next(left), record, tokenizer)
        else:
            expanded.append(int(token))
    return expanded


def places_of(ids: Sequence[int], record: ImagesRecord) -> Ints:
    """Return the positions of the placeholders [P]."""
    return np.flatnonzero(np.asarray(ids, np.int64) == record.image_token_id)


def check_runs(indices: Ints, most: int) -> None:
    """Raise RequestError if consecutive placeholders that attend to each other exceed a call's limit."""
    for run in runs_of(indices, run_ends(indices)):
        if len(run) > most:
            what = f"{len(run)} tokens of neighbouring images see each other, and a call takes {most}"
            fix = "separate the images by text, or build with a larger `llm.max_prefill_length`"
            raise RequestError(what, "images", fix)


def rope_positions(length: int, indices: Ints, images: Sequence[PreparedImage]) -> Ints:
    """Return M-RoPE's positions [3, length]: text counts up by one, an image spans its grid from its start.

    After an image, text continues from the longer of its sides. HF: `Qwen2VLModel.get_rope_index`.
    """
    steps = np.ones(length, np.int64)
    steps[indices] = 0
    starts = [0, *accumulate(image.tokens for image in images)][:-1]
    for start, image in zip(starts, images, strict=True):
        steps[indices[start + image.tokens - 1]] = max(image.grid[1:])
    text = np.cumsum(steps) - steps  # the position that each token starts at, with an image as one
    positions = np.broadcast_to(text, (3, length)).copy()
    for start, image in zip(starts, images, strict=True):
        inside = indices[start : start + image.tokens]
        positions[:, inside] = text[inside[0]] + np.indices(image.grid).reshape(3, -1)
    return positions


def _tokens_of(image: PreparedImage, record: ImagesRecord, tokenizer: Tokenizer | None) -> list[int]:
    """Return the tokens for one image."""
    if record.layout not in ("tiles", "crops"):
        return [record.image_token_id] * image.tokens
    tokenizer = _needed(tokenizer)
    if record.layout == "crops":
        start, end = (getattr(tokenizer.hf, f"{name}_image_token", usual) for name, usual in _AROUND.items())
        return _encoded([start, [record.image_token_id] * image.tokens, end], tokenizer)
    texts = TileTokens.of(tokenizer)
    placeholder, rows, columns = [record.image_token_id] * record.tokens_per_image, *image.tiles
    pieces: list[Any] = []
    for row in range(rows):
        for column in range(columns):
            pieces += [f"{texts.around}<row_{row + 1}_col_{column + 1}>", placeholder]
        pieces.append("\n")
    pieces += [("\n" if rows else "") + texts.around + texts.whole, placeholder, texts.around]
    return _encoded(pieces, tokenizer)


def _framed(
    ids: Sequence[int], images: Sequence[PreparedImage], record: ImagesRecord, tokenizer: Tokenizer | None
) -> list[int]:
    """Return a prompt whose images are between two tokens, on lines of their own.

    Adjacent texts are tokenized again, together with the ends of their lines. HF: `Gemma3Processor`.
    """
    assert record.frame is not None
    (begin, end), count = record.frame, sum(token == record.frame[0] for token in ids)
    if count != len(images):
        raise _mismatch(count, images, record, tokenizer)
    tokenizer, left = _needed(tokenizer), iter(images)
    marks = tokenizer.special_ids | {begin, end}
    groups = [list(tokens) for _, tokens in groupby(map(int, ids), marks.__contains__)]
    pieces: list[str | list[int]] = []
    for before, group, after in zip([[end], *groups], groups, [*groups[1:], [end]], strict=False):
        if group[0] not in marks:
            is_next = begin in (before[-1], after[0])
            pieces.append(tokenizer.decode(group, skip_special_tokens=False) if is_next else group)
            continue
        for token in group:
            block = [begin, *_tokens_of(next(left), record, tokenizer), end] if token == begin else []
            pieces += ["\n\n", block, "\n\n"] if block else [[token]]
    return _encoded(pieces, tokenizer)


def _needed(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return the tokenizer. Raises RequestError if there is none."""
    if tokenizer is None:
        what = "marking where an image is needs a tokenizer, and the bundle has none"
        raise RequestError(what, "prompt", "give token ids with all placeholders, as the model's processor writes them")
    return tokenizer


def _encoded(pieces: Sequence[str | list[int]], tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of alternating texts and tokens; adjacent texts are tokenized as one."""
    ids: list[int] = []
    text = ""
    for piece in [*pieces, []]:
        if isinstance(piece, str):
            text += piece
            continue
        ids += tokenizer.encode(text, add_special_tokens=False) if text else []
        ids, text = ids + piece, ""
    return ids


def _mismatch(
    count: int, images: Sequence[PreparedImage], record: ImagesRecord, tokenizer: Tokenizer | None
) -> RequestError:
    """Return the error for placeholders that do not match the images."""
    placeholder = record.image_token_id if record.frame is None else record.frame[0]
    name = f"token {placeholder}"
    if tokenizer is not None:
        name = f"`{tokenizer.hf.convert_ids_to_tokens(placeholder)}`"
    what = f"the prompt has {count} placeholders for {len(images)} images"
    return RequestError(what, "images", f"write {name} once per image, or give messages with image content")
