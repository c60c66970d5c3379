"""Prompts with images: messages to text and images, both to tokens with placeholders and where the images stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import RequestError
from trtkit.inputs.vision_language import ImageForm, ImageReader, array_key
from trtkit.runtime.soft_tokens import SoftTokens, run_ends, runs_of
from trtkit.runtime.vision_language.placeholders import check_runs, expand, places_of, rope_positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtkit.bundle.records import ImagesRecord
    from trtkit.inputs.vision_language import PreparedImage
    from trtkit.runtime.text import Tokenizer
    from trtkit.runtime.vision_language.tower import VisionTower

# How a message's content may carry its image: ours, and what others' clients write.
_IMAGE_KEYS = ("image", "path")


@dataclass(frozen=True, eq=False)
class MergedPrompt:
    """A prompt's tokens, with a placeholder for each soft token of its images."""

    ids: list[int]
    images: tuple[PreparedImage, ...] = ()


class ImagePrompts:
    """Reads the prompts of a model that takes images; the vision tower is not needed for that.

    folder: has the image processor's files.
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
        """Return a prompt's tokens with the images in their places. Raises RequestError where they do not fit."""
        prepared = tuple(self._reader.prepare(image) for image in images)
        expanded = expand(ids, prepared, self._record, self._tokenizer)
        if self._record.max_block:
            check_runs(places_of(expanded, self._record), self._record.max_block)
        return MergedPrompt(expanded, prepared)

    def soft_tokens(self, prompt: MergedPrompt, tower: VisionTower) -> SoftTokens | None:
        """Run the tower; return the vectors for a prompt's placeholders, None where it has no images."""
        if not prompt.images:
            return None
        places = places_of(prompt.ids, self._record)
        keys = np.concatenate([image.key + np.arange(image.tokens) for image in prompt.images])
        rope = ends = None
        if self._record.max_block:
            ends = run_ends(places)
            keys = np.concatenate([array_key(run) + np.arange(len(run)) for run in runs_of(keys, ends)])
        if self._record.has_grid_positions:
            rope = rope_positions(len(prompt.ids), places, prompt.images)
        return SoftTokens(places, tower.soft_tokens(prompt.images), keys, rope, ends)


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
    """Return an image part's own image, else the next of those that are left."""
    own = next((part[key] for key in _IMAGE_KEYS if part.get(key) is not None), None)
    if own is not None:
        return own
    if not left:
        what = "a message has an image without a file, and `images` has none left"
        raise RequestError(
            what, "messages", 'give its path: {"type": "image", "path": "photo.jpg"}, or add it to `images`'
        )
    return left.pop(0)
