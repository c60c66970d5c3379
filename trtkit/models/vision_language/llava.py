"""LLaVA 1.5: CLIP or SigLIP, features of an inner layer, two-layer projector. HF: `LlavaForConditionalGeneration`."""

from trtkit.errors import SourceError
from trtkit.models.vision_language.spec import Fields, VisionInput, VisionLimits, VisionSpec

# Class tokens before the patches, by tower; the strategy `default` drops them.
_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}


def spec(fields: Fields, _limits: VisionLimits, where: str) -> VisionSpec:
    """Return the tower that a config describes. Raises SourceError for an unknown tower."""
    vision, strategy = fields["vision_config"], fields["vision_feature_select_strategy"]
    if vision["model_type"] not in _CLASS_TOKENS:
        known = f"known: {', '.join(_CLASS_TOKENS)}"
        raise SourceError(f"`vision_config.model_type` is `{vision['model_type']}`", where, known)
    size = int(vision["image_size"])
    tokens = (size // int(vision["patch_size"])) ** 2 + _CLASS_TOKENS[vision["model_type"]]
    return VisionSpec(
        "llava",
        "trtkit.sources.vision_language.llava:LlavaVision",
        {"pixel_values": VisionInput(("images", int(vision["num_channels"]), size, size))},
        "image",
        int(fields["text_config"]["hidden_size"]),
        int(fields["image_token_id"] if "image_token_id" in fields else fields["image_token_index"]),
        tokens_per_image=tokens - (strategy == "default"),
    )
