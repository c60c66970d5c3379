"""The ranks of a multi-device network, as threads of one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Barrier
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass
class Group:
    """Ranks that exchange tensors. count: how many."""

    count: int
    posted: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = Barrier(self.count)

    def member(self, rank: int) -> Rank:
        """Return the group as rank `rank` sees it."""
        return Rank(self, rank)


@dataclass(frozen=True)
class Rank:
    """One rank of a group."""

    group: Group
    rank: int

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return self.group.count

    def exchange(self, key: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return what every rank brought to the layer `key`, by rank. Waits for all of them."""
        self.group.posted[key, self.rank] = tensor
        self.group.barrier.wait()
        parts = [self.group.posted[key, rank] for rank in range(self.count)]
        self.group.barrier.wait()
        return parts
