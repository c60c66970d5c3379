"""What prompts and settings are checked against: a language model's bundle before its network is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.bundle.bundle import Bundle, open_bundle
from trtkit.engine.decoders import llm_options
from trtkit.errors import GenerationError
from trtkit.runtime.text import open_tokenizer
from trtkit.runtime.vision_language import ImagePrompts

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.runtime.text import Tokenizer


@dataclass(frozen=True)
class TextBundle:
    """A language model's bundle. max_length: tokens a slot holds. vocab_size: of the network's logits.

    tokenizer: None if the bundle has none; then prompts are token ids. images: None if it takes text only.
    """

    bundle: Bundle
    tokenizer: Tokenizer | None
    vocab_size: int
    max_length: int
    images: ImagePrompts | None = None

    @property
    def path(self) -> Path:
        """The bundle's folder."""
        return self.bundle.path


def read_text_bundle(bundle: Bundle | Path | str) -> TextBundle:
    """Read what prompts and settings are checked against. Raises BundleError, GenerationError."""
    opened = open_bundle(bundle)
    manifest, folder = opened.manifest, opened.path / "model"
    if manifest.interface != "tokens":
        fix = "give a bundle that was built from an `llm` config"
        raise GenerationError("the bundle holds no language model", str(opened.path), fix)
    logits = next(output for output in manifest.outputs if output.name == "logits")
    tokenizer = open_tokenizer(folder)
    length = llm_options(manifest.config).max_sequence_length
    images = None if manifest.images is None else ImagePrompts(manifest.images, folder, tokenizer)
    return TextBundle(opened, tokenizer, logits.shape[-1], length, images)
