"""Qwen3-VL and Qwen3.5: images at native size, merged patches. HF: `Qwen3VLForConditionalGeneration`.

Source: https://arxiv.org/abs/2511.21631; features of inner layers (DeepStack): https://arxiv.org/abs/2406.04334.
"""

import math

from trtkit.errors import SourceError
from trtkit.models.vision_language.spec import Fields, ImageTraits, VisionInput, VisionLimits, VisionSpec

# Model types whose towers also output features of inner layers (DeepStack).
_WITH_INNER = ("qwen3_vl", "qwen3_vl_moe")


def traits(fields: Fields) -> ImageTraits:
    """Return what images require of the language model."""
    vision = fields.get("vision_config") or {}
    if fields["model_type"] not in _WITH_INNER:
        return ImageTraits(has_grid_positions=True)
    depth = vision.get("depth", vision.get("num_hidden_layers", 27))
    inner = {index for index in vision.get("deepstack_visual_indexes", (8, 16, 24)) if 0 <= index < depth}
    return ImageTraits(deepstack=len(inner), has_grid_positions=True)


def spec(fields: Fields, limits: VisionLimits, where: str) -> VisionSpec:
    """Return the tower that a config describes. Raises SourceError if its output size is not the hidden size."""
    vision, hidden_size = fields["vision_config"], int(fields["text_config"]["hidden_size"])
    if vision["out_hidden_size"] != hidden_size:
        what = f"`vision_config.out_hidden_size` is {vision['out_hidden_size']}, the language model's is {hidden_size}"
        raise SourceError(what, where, "take config.json from the model's own folder")
    merge, patch = int(vision["spatial_merge_size"]), int(vision["patch_size"])
    pixels = int(vision["in_channels"]) * int(vision["temporal_patch_size"]) * patch**2
    return VisionSpec(
        str(fields["model_type"]),
        "trtkit.sources.vision_language.qwen3_vl:Qwen3Vision",
        {
            "patches": VisionInput(("tokens", merge**2, pixels)),
            "positions": VisionInput(("tokens", merge**2, 2), "int32"),
            "taps": VisionInput(("tokens", merge**2, 4), "int32"),
            "tap_weights": VisionInput(("tokens", merge**2, 4)),
        },
        "patches",
        hidden_size,
        int(fields["image_token_id"]),
        merge_size=merge,
        position_side=math.isqrt(int(vision["num_position_embeddings"])),
        traits=traits(fields),
        arguments={"positions": limits.tokens * merge},
    )
