"""Whether a head was made for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtkit.errors import Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Iterable


class SizePair(NamedTuple):
    """A size that a head and its model both have. name: in the head's config."""

    name: str
    head: int
    model: int


def check_target(sizes: Iterable[SizePair], tokens: SizePair, where: str) -> None:
    """Raise ProblemsError for each way in which a head does not fit the model.

    sizes: must be equal. tokens: how many the head can guess, and how many the model has.
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
