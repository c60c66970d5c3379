"""What every draft head says of itself, whatever its kind, and whether it was made for a model."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from trtkit.errors import Problem, ProblemsError
from trtkit.models.attention import NormSpec
from trtkit.models.weights import Weight

Fields = Mapping[str, Any]
"""Of a `config.json`."""


@dataclass(frozen=True)
class FusionSpec:
    """What the model gives its head: hidden states of some layers side by side, projected to the head's size.

    layers: whose inputs are read, which are the outputs of the layers before them; 0 reads the embedding. norm: before
    the projection, of all together, or of each if `is_normed_apart`.
    """

    layers: tuple[int, ...]
    hidden_size: int
    norm: NormSpec | None = None
    is_normed_apart: bool = False
    has_bias: bool = False


class SpeculatorSpec(Protocol):
    """A head that guesses a model's tokens."""

    @property
    def kind(self) -> str:
        """Its name in manifests, and in the tables of what writes, runs and checks heads."""
        ...

    @property
    def fusion(self) -> FusionSpec | None:
        """What it reads; None for the model's hidden state after the final norm."""
        ...

    @property
    def cached_elements(self) -> int:
        """Elements that it caches of one token, besides the model's."""
        ...

    @property
    def most_tokens(self) -> int | None:
        """How many tokens it can guess in a step; None for any number."""
        ...

    @property
    def description(self) -> str:
        """Return the kind, what it guesses and what it reads, for people."""
        ...

    def fusion_weights(self) -> Iterator[Weight]:
        """Yield the weights that the model's network has for its head."""
        ...

    def head_weights(self) -> Iterator[Weight]:
        """Yield the weights of the head's own network, by the names that its kind's files give them."""
        ...


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
