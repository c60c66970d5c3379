"""Check that a draft head was made for a model and has the weights that its config describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtkit.errors import Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trtkit.models.weights import Weight
    from trtkit.sources.checkpoint import Checkpoint


class SizePair(NamedTuple):
    """A size shared by a draft head and its model. name: in the head's config."""

    name: str
    head: int
    model: int


def check_target(sizes: Iterable[SizePair], tokens: SizePair, where: str) -> None:
    """Raise ProblemsError for every mismatch between a draft head and the model.

    sizes: pairs that must be equal. tokens: how many the head can guess, and how many the model has.
    """
    problems = [
        Problem(f"{size.name} of the head is {size.head}, the model's is {size.model}", where)
        for size in sizes
        if size.head != size.model
    ]
    if not 0 < tokens.head <= tokens.model:
        problems.append(Problem(f"`{tokens.name}` is {tokens.head}, of {tokens.model} tokens", where))
    if problems:
        raise ProblemsError("the head was made for another model", problems, "use a head of this model")


def misfits(weights: Iterable[Weight], arrays: Checkpoint, where: str) -> Iterator[Problem]:
    """Yield weights that are missing, misshaped or unknown."""
    weights = list(weights)
    for weight in weights:
        name, expected = weight.name, list(weight.shape)
        if name not in arrays:
            yield Problem(f"`{name}` is missing, of shape {expected}", where)
        elif list(arrays.shape_of(name)) != expected:
            yield Problem(f"`{name}` has shape {list(arrays.shape_of(name))}; expected {expected}", where)
    known = {weight.name for weight in weights}
    yield from (Problem(f"`{name}` is not a weight of this head", where) for name in arrays if name not in known)
