"""Guesses that form a tree, each branch compared with the same tokens as a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.execution import Call, CallTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.llm.execution import ReferenceDecoder
    from trtkit.verification.decoder_reference import TransformersReference

_BRANCHES = ((0,), (0, 1), (0, 1, 2), (0, 1, 3), (0, 4), (0, 4, 5))
"""Of a tree in depth-first order: the columns of each token's ancestors and its own; 0 is the first token."""
_ENDS = (6, 4, 3, 4, 6, 6)
"""The column after each token's last descendant."""


def tree_pairs(
    model: ReferenceDecoder, reference: TransformersReference, ids: Sequence[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits of each token of a tree that follows a prompt's beginning, and the reference's.

    The tree's tokens are the prompt's own, in an order that no branch shares with it.
    """
    count = len(_BRANCHES)
    known = list(ids[: max(1, min(len(ids) // 2, model.max_length - count))])
    start = np.array([len(known) - 1])
    tokens = [known[-1], *(ids[(7 * index + 3) % len(ids)] for index in range(1, count))]
    if len(known) > 1:
        model.forward(Call(0, np.array([known[:-1]]), np.zeros(1, np.int64), start))
    tree = CallTree(np.array([[len(branch) - 1 for branch in _BRANCHES]]), np.array([_ENDS]))
    logits = model.forward(Call(0, np.array([tokens]), start, np.array([count]), tree=tree))[0]
    sequences = [[*known[:-1], *(tokens[column] for column in branch)] for branch in _BRANCHES]
    return [(ours[None], reference.logits(sequence)[-1:]) for ours, sequence in zip(logits, sequences, strict=True)]
