"""A head with its files open, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np

    from trtkit.arrays import Array
    from trtkit.models.speculators.spec import Fields, SpeculatorSpec
    from trtkit.models.weights import Weight
    from trtkit.sources.checkpoint import Checkpoint, StoredArray


@dataclass(frozen=True, eq=False)
class HeadFolder:
    """What a head's folder holds. fields: of config.json, at `where`. stored: its arrays by name."""

    path: str
    where: str
    fields: Fields
    stored: Mapping[str, StoredArray]


@dataclass(frozen=True, eq=False)
class OpenedSpeculator:
    """A head with its files open. ids: [V'], the model's token of each of the head's.

    fusion, head: weights by path, of the model's network and of the head's. borrowed: the head's weights that are the
    model's, by path, and their paths there. layer_fields: the config of its layer, as of a model of one layer, if its
    kind has one.
    """

    spec: SpeculatorSpec
    ids: np.ndarray
    fusion: Mapping[str, Array]
    head: Mapping[str, Array]
    borrowed: Mapping[str, str] = field(default_factory=dict)
    layer_fields: Fields = field(default_factory=dict)

    def weights(self, of_model: Mapping[str, Array]) -> dict[str, Array]:
        """Return the weights of the head's network by path. of_model: the model's by path."""
        return {**self.head, **{path: of_model[name] for path, name in self.borrowed.items()}}


def misfits(weights: Iterable[Weight], arrays: Checkpoint, where: str) -> Iterator[Problem]:
    """Yield weights that are missing, of another shape, or not the head's."""
    weights = list(weights)
    for weight in weights:
        name, expected = weight.name, list(weight.shape)
        if name not in arrays:
            yield Problem(f"`{name}` is missing, of shape {expected}", where)
        elif list(arrays.shape_of(name)) != expected:
            yield Problem(f"`{name}` has shape {list(arrays.shape_of(name))}; expected {expected}", where)
    known = {weight.name for weight in weights}
    yield from (Problem(f"`{name}` is not a weight of this head", where) for name in arrays if name not in known)
