"""Qwen2-VL and Qwen2.5-VL: images at native size, patches merged by four. HF: `Qwen2VLForConditionalGeneration`.

Source: https://arxiv.org/abs/2409.12191, https://arxiv.org/abs/2502.13923.
"""

from trtkit.models.vision_language.spec import Fields, ImageTraits, VisionInput, VisionLimits, VisionSpec


def traits(_fields: Fields) -> ImageTraits:
    """Return what images require of the language model."""
    return ImageTraits(has_grid_positions=True)


def spec(fields: Fields, limits: VisionLimits, _where: str) -> VisionSpec:
    """Return the tower that a config describes."""
    vision = fields["vision_config"]
    merge, patch = int(vision["spatial_merge_size"]), int(vision["patch_size"])
    pixels = int(vision["in_channels"]) * int(vision["temporal_patch_size"]) * patch**2
    inputs = {
        "patches": VisionInput(("tokens", merge**2, pixels)),
        "positions": VisionInput(("tokens", merge**2, 2), "int32"),
    }
    window = int(vision.get("window_size", 0)) // merge // patch
    if window:
        inputs["windows"] = VisionInput(("tokens",), "int32")
    return VisionSpec(
        str(fields["model_type"]),
        "trtkit.sources.vision_language.qwen2_vl:Qwen2Vision",
        inputs,
        "patches",
        int(fields["text_config"]["hidden_size"]),
        int(fields["image_token_id"]),
        merge_size=merge,
        window_size=window,
        traits=traits(fields),
        arguments={"positions": limits.tokens * merge},
    )
