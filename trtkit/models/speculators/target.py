"""Whether a head was made for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import Problem, ProblemsError

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_target(sizes: Iterable[tuple[str, int, int]], tokens: tuple[str, int, int], where: str) -> None:
    """Raise ProblemsError for each way in which a head does not fit the model.

    sizes: names in the head's config, with the head's value and the model's. tokens: the name of the number of tokens
    that the head can guess, that number, and how many the model has.
    """
    problems = [
        Problem(f"{name} of the head is {head_size}, the model's is {other}", where)
        for name, head_size, other in sizes
        if head_size != other
    ]
    name, guessed, known = tokens
    if not 0 < guessed <= known:
        problems.append(Problem(f"`{name}` is {guessed}, of {known} tokens", where))
    if problems:
        raise ProblemsError("the head was made for another model", problems, "use a head of this model")
