"""Text input and output of generation: a bundle's tokenizer, streaming detokenization, stop strings."""

from trtkit.runtime.text.detokenizer import IncrementalDetokenizer, StopStrings
from trtkit.runtime.text.tokenizer import Tokenizer, eos_token_ids, open_tokenizer

__all__ = ["IncrementalDetokenizer", "StopStrings", "Tokenizer", "eos_token_ids", "open_tokenizer"]
