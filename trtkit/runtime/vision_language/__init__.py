"""Images in prompts: preprocessing, placeholders, the vision tower, and positions in three axes."""

from trtkit.inputs.vision_language import ImageReader, PreparedImage
from trtkit.runtime.vision_language.image_prompts import ImagePrompts, MergedPrompt, split_messages
from trtkit.runtime.vision_language.tower import VisionTower, open_tower, reference_tower

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
