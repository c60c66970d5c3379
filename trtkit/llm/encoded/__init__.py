"""Prompts of encoder-decoder models: the encoder and its input, and the tokens that answers start with."""

from trtkit.llm.encoded.encoder import Encoder, open_encoder, reference_encoder
from trtkit.llm.encoded.prompts import AudioPrompts, EncoderPrompt, EncoderPrompts, TextPrompts

__all__ = [
    "AudioPrompts",
    "Encoder",
    "EncoderPrompt",
    "EncoderPrompts",
    "TextPrompts",
    "open_encoder",
    "reference_encoder",
]
