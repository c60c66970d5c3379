"""Perplexity per token of a text: exp of the mean negative log-likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trtkit.errors import SourceError
from trtkit.sources.transformers_model import encoder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.config.schema import LlmOptions
    from trtkit.sources.decoder_source import DecoderSource

_WINDOW, _MOST_WINDOWS = 512, 8


def windows(path: Path, opened: DecoderSource, options: LlmOptions) -> list[list[int]]:
    """Return the text's tokens in windows of 512, eight at most, each evaluated on its own.

    Raises SourceError where the file cannot be read or has too few tokens.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"the text cannot be read: {error}", str(path), "give a UTF-8 text file") from None
    ids = encoder(opened).encode(text)
    size = min(_WINDOW, options.max_sequence_length, len(ids))
    if size < 2:
        raise SourceError(f"the text has {len(ids)} tokens, two are the least", str(path), "give a longer text")
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)][:_MOST_WINDOWS]


def mean_loss(logits: torch.Tensor, ids: Sequence[int]) -> float:
    """Return the mean negative log-likelihood of each token after the first; logits: [S, V]."""
    likelihood = torch.log_softmax(logits[:-1].double(), dim=-1)
    return float(-likelihood.gather(1, torch.tensor(ids[1:])[:, None]).mean())


def distance(logits: torch.Tensor, base: torch.Tensor) -> tuple[float, float]:
    """Return how far next-token distributions are from others: the mean Kullback-Leibler divergence, in nats, and the
    share of tokens whose likeliest next one is the same. Both: [S, V].
    """
    own, others = (torch.log_softmax(one.double(), dim=-1) for one in (logits, base))
    divergence = (others.exp() * (others - own)).sum(-1).mean()
    return float(divergence), float((logits.argmax(-1) == base.argmax(-1)).double().mean())
