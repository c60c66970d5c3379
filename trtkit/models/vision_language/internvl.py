"""InternVL: crops of one size, pixel shuffle, a two-layer projector. HF: `InternVLForConditionalGeneration`.

Source: https://arxiv.org/abs/2412.05271, https://arxiv.org/abs/2504.10479.
"""

from trtkit.errors import SourceError
from trtkit.models.vision_language.spec import Fields, VisionInput, VisionLimits, VisionSpec


def spec(fields: Fields, _limits: VisionLimits, where: str) -> VisionSpec:
    """Return the tower that a config describes. Raises SourceError for crops that are not square."""
    vision = fields["vision_config"]
    (height, width), (rows, columns) = _pair(vision["image_size"]), _pair(vision["patch_size"])
    patches, ratio = (height // rows, width // columns), float(fields["downsample_ratio"])
    per_side = patches[0] * ratio
    if patches[0] != patches[1] or per_side != int(per_side) or per_side < 1:
        what = f"{patches[0]} x {patches[1]} patches, at `downsample_ratio` {ratio:g}, make no square of tokens"
        raise SourceError(what, where, "take config.json from the model's own folder")
    if fields["vision_feature_select_strategy"] != "default":
        what = f"`vision_feature_select_strategy` is `{fields['vision_feature_select_strategy']}`"
        raise SourceError(what, where, "use `default`, which drops the class token")
    return VisionSpec(
        "internvl",
        "trtkit.sources.vision_language.internvl:InternVlVision",
        {"pixel_values": VisionInput(("images", int(vision["num_channels"]), height, width))},
        "crops",
        int(fields["text_config"]["hidden_size"]),
        int(fields["image_token_id"]),
        tokens_per_image=int(per_side) ** 2,
    )


def _pair(size: int | list[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
