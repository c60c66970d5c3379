"""Log probabilities of tokens, as vLLM reports them: those of the model itself, before any setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.llm.sampling.sampled import TokenLogprobs
from trtkit.runtime.device import start_copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def token_logprobs(logits: Tensor, tokens: Tensor, top: int) -> Callable[[], list[TokenLogprobs]]:
    """Start to compute what to report of tokens [R] under logits [R, V]; return what waits for it and returns it.

    top: how many of the most likely tokens of each row.
    """
    logs = logits.log_softmax(-1)
    chosen = logs.gather(-1, tokens.clamp(min=0).unsqueeze(-1))
    best = logs.topk(min(top, logs.shape[-1]), -1)
    ranks = (logs > chosen).sum(-1) + 1
    copies = [start_copy(values) for values in (tokens, chosen.squeeze(-1), ranks, best.indices, best.values)]

    def arrived() -> list[TokenLogprobs]:
        *columns, ids, values = (copy().tolist() for copy in copies)
        tops = (tuple(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True))
        return [TokenLogprobs(*row) for row in zip(*columns, tops, strict=True)]

    return arrived
