"""Idefics3 and SmolVLM: tiles of one size, SigLIP, pixel shuffle. HF: `SmolVLMForConditionalGeneration`.

Source: https://arxiv.org/abs/2408.12637, https://arxiv.org/abs/2504.05299.
"""

from trtkit.models.vision_language.spec import Fields, VisionInput, VisionLimits, VisionSpec


def spec(fields: Fields, _limits: VisionLimits, _where: str) -> VisionSpec:
    """Return the tower that a config describes."""
    vision, factor = fields["vision_config"], int(fields["scale_factor"])
    size = int(vision["image_size"])
    return VisionSpec(
        str(fields["model_type"]),
        "trtkit.sources.vision_language.idefics3:Idefics3Vision",
        {"pixel_values": VisionInput(("images", int(vision["num_channels"]), size, size))},
        "tiles",
        int(fields["text_config"]["hidden_size"]),
        int(fields["image_token_id"]),
        tokens_per_image=(size // int(vision["patch_size"])) ** 2 // factor**2,
    )
