"""Images in prompts: preprocessing, placeholders, the vision tower, and positions in three axes."""

from trtkit.inputs.vision_language import ImageReader, PreparedImage
from trtkit.llm.images.image_prompts import ImagePrompts, MergedPrompt, split_messages
from trtkit.llm.images.tower import VisionTower, open_tower, reference_tower

__all__ = [
    "ImagePrompts",
    "ImageReader",
    "MergedPrompt",
    "PreparedImage",
    "VisionTower",
    "open_tower",
    "reference_tower",
    "split_messages",
]
