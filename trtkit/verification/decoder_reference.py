"""transformers' own model with the checkpoint's weights: what an LLM's network is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.sources.huggingface.model import causal_lm

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.sources.decoder_source import DecoderSource


class TransformersReference:
    """A causal language model of transformers in fp32 on the CPU.

    Raises SourceError where transformers does not know the model or the weights do not fit it.
    """

    def __init__(self, opened: DecoderSource, length: int = 0) -> None:
        """length: the longest sequence of the engine, whose rope factors are then taken at every length."""
        import transformers

        self.model = causal_lm(opened)
        read = "" if opened.folder is not None else ", with the weights that trtkit read"
        long = ", long rope factors at every length" if _lengthen(self.model, length) else ""
        self.description = f"transformers {transformers.__version__}, {type(self.model).__name__} in fp32{read}{long}"

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return logits [S, V] of one sequence."""
        import torch

        with torch.inference_mode():
            logits: torch.Tensor = self.model(torch.tensor([list(ids)])).logits[0]
        return logits

    def greedy(self, prompt: Sequence[int], new_tokens: int, stop: Sequence[int] = ()) -> list[int]:
        """Return the most likely continuation of one prompt, up to a stop token, by `generate`."""
        import torch

        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            sequences = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                eos_token_id=list(stop) or None,
                pad_token_id=0,
            )
        answer = [int(token) for token in sequences[0, len(prompt) :]]
        return answer[:-1] if answer and answer[-1] in stop else answer


def _lengthen(model: Any, length: int) -> bool:
    """Let LongRoPE take its factors for sequences of `length` at any length; return whether they are the long ones."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    is_long = False
    for module in (part for part in model.modules() if getattr(part, "rope_type", None) == "longrope"):
        original = module.config.rope_parameters["original_max_position_embeddings"]
        if length > original:
            frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, "cpu", seq_len=length)
            module.original_inv_freq.copy_(frequencies)
            is_long = True
    return is_long
