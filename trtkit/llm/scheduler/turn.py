"""A request's place among the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

Rank = tuple[int, int, float, int]


@dataclass(eq=False)
class Turn:
    """Where a request stands. Times are those of the engine's clock, in seconds.

    arrival: a number, in order. level: smaller is sooner; requests of one level do not give way to each other.
    due_s: when it has to begin. used_s: of its level's quantum. served_s: when it was last served, or arrived.
    is_promoted: it was not served for too long, so it comes first on its level. promotions: how often that happened.
    has_begun: whether it ever had a slot.
    is_by_deadline: whether the earliest deadline comes first on a level.
    """

    arrival: int = 0
    level: int = 0
    due_s: float = math.inf
    used_s: float = 0.0
    served_s: float = 0.0
    is_promoted: bool = False
    promotions: int = 0
    has_begun: bool = False
    is_by_deadline: bool = True

    @property
    def rank(self) -> Rank:
        """What requests are sorted by: level, promoted ones first, deadline, arrival."""
        is_due = self.is_by_deadline and not self.is_promoted
        return (self.level, not self.is_promoted, self.due_s if is_due else math.inf, self.arrival)

    def promote(self) -> None:
        """Move to the highest level, before all others there."""
        self.level, self.used_s, self.is_promoted = 0, 0.0, True
        self.promotions += 1
