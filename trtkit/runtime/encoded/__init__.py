"""Prompts of encoder-decoder models: what their encoder takes, the encoder, and the tokens that answers begin with."""

from trtkit.runtime.encoded.audio import AudioPrompts
from trtkit.runtime.encoded.encoder import Encoder, open_encoder, reference_encoder
from trtkit.runtime.encoded.prompts import EncoderPrompt, EncoderPrompts
from trtkit.runtime.encoded.text import TextPrompts

__all__ = [
    "AudioPrompts",
    "Encoder",
    "EncoderPrompt",
    "EncoderPrompts",
    "TextPrompts",
    "open_encoder",
    "reference_encoder",
]
