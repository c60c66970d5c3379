"""Gemma 3: SigLIP, average pooling, bidirectional attention within images. HF: `Gemma3ForConditionalGeneration`.

Source: https://arxiv.org/abs/2503.19786.
"""

import math

from trtkit.errors import SourceError
from trtkit.models.vision_language.spec import Fields, ImageTraits, VisionInput, VisionLimits, VisionSpec


def traits(_fields: Fields) -> ImageTraits:
    """Return what images require of the language model."""
    return ImageTraits(has_whole_images=True)


def spec(fields: Fields, _limits: VisionLimits, where: str) -> VisionSpec:
    """Return the tower that a config describes. Raises SourceError for unsupported settings."""
    vision, count = fields["vision_config"], int(fields["mm_tokens_per_image"])
    if vision["model_type"] != "siglip_vision_model":
        known = "known: siglip_vision_model"
        raise SourceError(f"`vision_config.model_type` is `{vision['model_type']}`", where, known)
    softcap = fields["text_config"].get("final_logit_softcapping")
    if softcap is not None:
        what = f"`text_config.final_logit_softcapping` is {softcap}, which transformers ignores in this model"
        raise SourceError(what, where, "remove it, or set `vision.enabled=false` for text only")
    size, side = int(vision["image_size"]), math.isqrt(max(count, 0))
    patches = size // int(vision["patch_size"])
    if side < 1 or side**2 != count or side > patches or patches // (patches // side) != side:
        what = f"`mm_tokens_per_image` is {count}, and {patches} x {patches} patches cannot be pooled into that many"
        raise SourceError(what, where, "take config.json from the model's own folder")
    return VisionSpec(
        "gemma3",
        "trtkit.sources.vision_language.gemma3:Gemma3Vision",
        {"pixel_values": VisionInput(("images", int(vision["num_channels"]), size, size))},
        "framed",
        int(fields["text_config"]["hidden_size"]),
        int(fields["image_token_index"]),
        tokens_per_image=count,
        frame=(int(fields["boi_token_index"]), int(fields["eoi_token_index"])),
        traits=traits(fields),
    )
