"""What the language model of a vision-language model is given of an image."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Layout = Literal["image", "framed", "tiles", "crops", "patches"]
Dim = int | str
Fields = dict[str, Any]
"""Of a whole config.json, those of its parts too."""


@dataclass(frozen=True)
class VisionInput:
    """An input of the vision tower. shape: sizes, and names of those known at run time."""

    shape: tuple[Dim, ...]
    dtype: Literal["fp32", "int32"] = "fp32"


@dataclass(frozen=True)
class VisionLimits:
    """What one call of the tower takes at most: images (or tiles of one), and tokens of an image cut into patches.

    prefill: new tokens of a sequence in one call of the language model.
    """

    images: int
    tokens: int
    prefill: int = 0


@dataclass(frozen=True)
class ImageTraits:
    """What a family's images need of its language model's network.

    has_whole_images: tokens of an image see each other in both directions, so a call computes all of them.
    deepstack: extra vectors of each soft token; the first layers each add one to their output.
    has_grid_positions: tokens of an image turn by time, height and width (M-RoPE).
    """

    has_whole_images: bool = False
    deepstack: int = 0
    has_grid_positions: bool = False


@dataclass(frozen=True)
class VisionSpec:
    """A vision tower with its projector, which gives `soft_tokens` of the language model's hidden size.

    With `deepstack` they are 1 + `deepstack` times as wide.

    module: `package.module:class` in torch, called with the model's `folder` and `arguments`.
    layout: an image is one picture of one size (`image`), the same between the two tokens of `frame`, on lines of its
        own (`framed`), several tiles of one size with texts that name them (`tiles`), several crops of one size in a
        row (`crops`), or as many patches as it has (`patches`), in groups of `merge_size` x `merge_size` that become
        one token.
    tokens_per_image: of one picture or tile; 0 where it depends on the image's size.
    image_token_id: the placeholder; each soft token replaces one.
    position_side: of the square of learned positions that is stretched to an image's patches; 0 if there is none.
    window_size: side, in tokens, of the windows that attention keeps to; 0 if there are none.
    frame: tokens before and after an image; the first one represents it in a prompt.
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
        """The size that calls differ in: images, or an image's tokens."""
        return "tokens" if self.layout == "patches" else "images"
