"""Compare a one-layer draft head with its reference, guess by guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import GenerationError
from trtkit.llm.execution import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from trtkit.llm.execution import ReferenceDecoder

_GUESSES = 2
"""Guesses from the head's own hidden states, after those from the model's."""


def chain_pairs(
    model: ReferenceDecoder,
    known: np.ndarray,
    torch_head: Callable[[Sequence[int], torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    theirs_hidden: torch.Tensor,
    ids: Sequence[int],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits of a head and its reference after each chunk of a prompt and each of its own guesses.

    known: [V'], the model's token ids that the head can guess. torch_head: maps next tokens and hidden states to logits
    [S, V'] and hidden states for the next guess [S, D]. theirs_hidden: [S, D], what the reference head reads of the
    model for `ids`.
    Raises GenerationError for a prompt of fewer than three tokens.
    """
    import torch

    speculator, count = model.speculator, len(ids)
    if speculator is None or count < 3:
        raise GenerationError("a head needs a prompt of three tokens", "inputs", "give a longer text")
    theirs_hidden = theirs_hidden[: count - 1]
    model.forward(Call(0, np.array([ids]), np.zeros(1, np.int64), np.array([count])))
    assert model.next_hidden is not None
    ours_hidden, tokens, pairs = model.next_hidden[:, : count - 1].clone(), list(ids[1:]), []
    middle = count // 2
    spans = [(0, middle), *((position, position + 1) for position in range(middle, count - 1 + _GUESSES))]
    for start, stop in spans:
        sizes = np.array([start]), np.array([stop - start])
        call = Call(0, np.array([tokens[start:stop]]), *sizes, hidden=ours_hidden[:, start:stop])
        logits = speculator.forward(call)[:, known]
        theirs, next_hidden = torch_head(tokens[:stop], theirs_hidden[:stop])
        pairs.append((logits, theirs[-1:]))
        if stop >= count - 1:  # the next guess is made from this one
            assert speculator.next_hidden is not None
            ours_hidden = torch.cat([ours_hidden, speculator.next_hidden[:, None]], 1)
            theirs_hidden = torch.cat([theirs_hidden, next_hidden[-1:]])
            tokens.append(int(known[int(theirs[-1].argmax())]))
    return pairs
