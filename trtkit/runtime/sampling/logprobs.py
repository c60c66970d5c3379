"""Log probabilities of tokens, as vLLM reports them: those of the model itself, before any setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trtkit.runtime.sampling.sampled import TokenLogprobs

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Array = np.ndarray[Any, Any]


def token_logprobs(logits: Tensor, tokens: Array, top: int) -> list[TokenLogprobs]:
    """Return what to report of tokens [R] under logits [R, V], with the `top` most likely of each row."""
    logs = logits.log_softmax(-1)
    chosen = torch.from_numpy(tokens).to(logits.device).unsqueeze(-1)
    own = logs.gather(-1, chosen)
    ranks = ((logs > own).sum(-1) + 1).tolist()
    best = logs.topk(min(top, logs.shape[-1]), -1)
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    columns = zip(tokens.tolist(), own.squeeze(-1).tolist(), ranks, tops, strict=True)
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(*top_of, strict=True)))
        for token, logprob, rank, top_of in columns
    ]
