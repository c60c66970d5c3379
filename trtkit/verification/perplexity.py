"""Perplexity per token of a text: exp of the mean negative log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.errors import SourceError
from trtkit.llm.execution import Call
from trtkit.sources.huggingface.model import encoder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.config.llm import LlmOptions
    from trtkit.llm.execution import DecoderExecution
    from trtkit.sources.decoder_source import DecoderSource

_WINDOW, _MOST_WINDOWS = 512, 8
_CHUNK = 64


def windows(path: Path, opened: DecoderSource, options: LlmOptions) -> list[list[int]]:
    """Return the text's tokens in windows of 512, at most eight, each evaluated independently.

    Raises SourceError if the file cannot be read or has too few tokens.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"the text cannot be read: {error}", str(path), "give a UTF-8 text file") from None
    ids = encoder(opened).encode(text)
    size = min(_WINDOW, options.max_sequence_length, len(ids))
    if size < 2:
        raise SourceError(f"the text has {len(ids)} tokens; at least two are needed", str(path), "give a longer text")
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)][:_MOST_WINDOWS]


def mean_loss(logits: torch.Tensor, ids: Sequence[int]) -> float:
    """Return the mean negative log-likelihood of each token after the first; logits: [S, V]."""
    likelihood = torch.log_softmax(logits[:-1].double(), dim=-1)
    return float(-likelihood.gather(1, torch.tensor(ids[1:])[:, None]).mean())


@dataclass(frozen=True)
class WindowRead:
    """One window, read by one or two models. losses: each model's mean negative log-likelihood per token.

    divergence: mean Kullback-Leibler divergence, in nats, of the first model's next-token distributions from the
    second's. same: share of tokens with the same most likely next token.
    """

    losses: list[float]
    divergence: float = 0.0
    same: float = 1.0


def read_window(executions: Sequence[DecoderExecution], ids: Sequence[int]) -> WindowRead:
    """Read a window with all models in step, from empty slots.

    Only a few tokens' logits are held at a time: a whole window's take gigabytes for a large vocabulary. A model that
    reads only active neurons reads one token at a time, as it does when it generates; with several models, they read
    all neurons.
    """
    size = min(_CHUNK, *(execution.max_prefill_length for execution in executions))
    size = 1 if any(execution.calls.neurons is not None for execution in executions) else size
    losses, divergence, same = [0.0] * len(executions), 0.0, 0.0
    for start in range(0, len(ids), size):
        chunk, following = ids[start : start + size], ids[start + 1 : start + size + 1]
        logs = [_log_probabilities(execution, chunk, start) for execution in executions]
        index = torch.tensor(following, dtype=torch.long)[:, None]
        for model, rows in enumerate(logs):
            losses[model] -= float(rows[: len(following)].gather(1, index).sum())
        if len(logs) > 1:
            ours, base = logs
            divergence += float((base.exp() * (base - ours)).sum())
            same += float((ours.argmax(-1) == base.argmax(-1)).sum())
    mean = [loss / (len(ids) - 1) for loss in losses]
    return WindowRead(mean, divergence / len(ids), same / len(ids)) if len(executions) > 1 else WindowRead(mean)


def _log_probabilities(execution: DecoderExecution, chunk: Sequence[int], start: int) -> torch.Tensor:
    """Return the log probabilities [S, V] after each token of a chunk, in fp64."""
    new = np.array([chunk], np.int64)
    call = Call(0, new, np.array([start], np.int64), np.array([new.shape[1]], np.int64))
    return torch.log_softmax(execution.forward(call)[0].cpu().double(), dim=-1)
