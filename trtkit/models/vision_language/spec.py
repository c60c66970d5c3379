"""A vision tower as data: its inputs and outputs, how an image appears in a prompt, what the language model needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Layout = Literal["image", "framed", "tiles", "crops", "patches"]
Dim = int | str
Fields = dict[str, Any]
"""Fields of a complete config.json, with those of its parts."""


@dataclass(frozen=True)
class VisionInput:
    """An input of the vision tower. shape: sizes, or symbols for those known at run time."""

    shape: tuple[Dim, ...]
    dtype: Literal["fp32", "int32"] = "fp32"


@dataclass(frozen=True)
class VisionLimits:
    """Limits of one call of the tower: images (or tiles), and tokens if images are cut into patches.

    prefill: most new tokens per sequence in one call of the language model.
    """

    images: int
    tokens: int
    prefill: int = 0


@dataclass(frozen=True)
class ImageTraits:
    """What a family's images require of the language model's network.

    has_whole_images: attention within an image is bidirectional, so one call computes all of its tokens.
    deepstack: number of extra vectors per soft token; each of the first layers adds one to its output.
    has_grid_positions: an image's tokens have positions in time, height and width (M-RoPE).
    """

    has_whole_images: bool = False
    deepstack: int = 0
    has_grid_positions: bool = False


@dataclass(frozen=True)
class VisionSpec:
    """A vision tower with its projector. It outputs `soft_tokens`, of the language model's hidden size.

    With DeepStack they are 1 + `traits.deepstack` times as wide.

    module: `package.module:class` in torch, called with the model's `folder` and `arguments`.
    layout: how an image is fed and appears in a prompt. `image`: resized to one size. `framed`: likewise, between the
        two tokens of `frame`, on lines of its own. `tiles`: several tiles of one size, each named in the prompt.
        `crops`: several crops of one size in a row. `patches`: as many patches as its size has; `merge_size` x
        `merge_size` of them become one token.
    image_token_id: the placeholder token; each soft token replaces one.
    tokens_per_image: per image or tile; 0 if it depends on the image's size.
    window_size: side of attention windows, in tokens; 0 if there are none.
    position_side: side of the square grid of learned positions, interpolated to an image's patches; 0 if there is none.
    frame: tokens before and after an image; a prompt contains only the first.
    """

    model_type: str
    module: str
    inputs: Mapping[str, VisionInput]
    layout: Layout
    hidden_size: int
    image_token_id: int
    tokens_per_image: int = 0
    merge_size: int = 1
    window_size: int = 0
    position_side: int = 0
    frame: tuple[int, int] | None = None
    traits: ImageTraits = ImageTraits()
    arguments: Mapping[str, Any] | None = None

    @property
    def symbol(self) -> str:
        """The symbol of the dimension that varies between calls: images, or an image's tokens."""
        return "tokens" if self.layout == "patches" else "images"
