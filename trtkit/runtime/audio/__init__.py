"""Audio in prompts: reading files, features, the encoder, and the tokens that begin a transcript."""

from trtkit.runtime.audio.encoder import AudioEncoder, open_encoder, reference_encoder
from trtkit.runtime.audio.prompts import AudioPrompts, HeardPrompt

__all__ = ["AudioEncoder", "AudioPrompts", "HeardPrompt", "open_encoder", "reference_encoder"]
