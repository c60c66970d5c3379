"""A user's own processors, called as transformers calls its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trtkit.llm.sampling.columns import Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trtkit.llm.sampling.processors.step import SamplingStep


def call_functions(step: SamplingStep) -> None:
    """Call `processor(input_ids [1, L], scores [1, V]) -> scores` in order. One that fails ends its request only."""
    for row, state in step.states_of(Use.FUNCTIONS):
        ids = step.tensor(step.sequences.ids(step.slots[row]).copy()[None])
        for function in state.settings.params.logits_processors:
            try:
                step.scores[row] = _called(function, ids, step.scores[row : row + 1].clone())[0]
            except Exception as error:
                # Whatever a user's function raises ends its request, and nothing else.
                step.errors[row] = f"the logits processor `{_name(function)}` failed: {_reason(error)}"
                break


class _WrongScoresError(Exception):
    """What a processor returned is not scores."""


def _called(function: Callable[[Any, Any], Any], ids: Tensor, before: Tensor) -> Tensor:
    scores = function(ids, before)
    if not isinstance(scores, torch.Tensor):
        raise _WrongScoresError(f"it returned {type(scores).__name__}, not a tensor")
    if scores.shape != before.shape:
        raise _WrongScoresError(f"it returned shape {list(scores.shape)}, not {list(before.shape)}")
    if not (scores < torch.inf).all():
        raise _WrongScoresError("it returned NaN or infinity")
    return scores


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _WrongScoresError) else f"{type(error).__name__}: {error}"


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
