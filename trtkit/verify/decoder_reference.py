"""transformers' own model with the checkpoint's weights: what an LLM's network is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.sources.decoder_source import DecoderSource


class TransformersReference:
    """A causal language model of transformers in fp32 on the CPU.

    Raises SourceError where transformers does not know the model or the weights do not fit it.
    """

    def __init__(self, opened: DecoderSource) -> None:
        import torch
        import transformers

        fields = {key: value for key, value in opened.config.items() if key not in _NOT_ARGUMENTS}
        config = transformers.AutoConfig.for_model(opened.config["model_type"], **fields)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
        state = {name: _fp32(opened.checkpoint[name]) for name in opened.checkpoint}
        missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
        model.tie_weights()
        tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
        if unexpected or set(missing) - tied:
            names = ", ".join([*unexpected, *sorted(set(missing) - tied)][:5])
            raise SourceError(f"transformers does not take these weights: {names}", opened.where)
        self.model = model.eval()
        self.description = f"transformers {transformers.__version__}, {type(model).__name__} in fp32"

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return logits [S, V] of one sequence."""
        import torch

        with torch.inference_mode():
            found: torch.Tensor = self.model(torch.tensor([list(ids)])).logits[0]
        return found

    def greedy(self, prompt: Sequence[int], new_tokens: int, stop: Sequence[int] = ()) -> list[int]:
        """Return the most likely continuation of one prompt, up to a stop token, by `generate`."""
        import torch

        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            found = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                eos_token_id=list(stop) or None,
                pad_token_id=0,
            )
        answer = [int(token) for token in found[0, len(prompt) :]]
        return answer[:-1] if answer and answer[-1] in stop else answer


# Fields of a config.json that a config class does not take as arguments.
_NOT_ARGUMENTS = {"model_type", "architectures", "transformers_version", "auto_map"}


def _fp32(array: Any) -> torch.Tensor:
    """Return an array as an fp32 tensor."""
    import torch

    return torch.from_numpy(np.array(array, dtype=np.float32))
