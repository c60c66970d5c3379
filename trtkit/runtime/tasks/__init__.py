"""Interpretation of a vision model's outputs: classes, text, boxes, masks, poses, depth, embeddings."""

from trtkit.runtime.tasks.classes import softmax, top_classes
from trtkit.runtime.tasks.reader import ctc_characters, ctc_scores, ctc_text

__all__ = ["ctc_characters", "ctc_scores", "ctc_text", "softmax", "top_classes"]
