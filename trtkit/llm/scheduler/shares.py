"""Fairness between users: virtual token counters, https://arxiv.org/abs/2401.00588."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trtkit.llm.scheduler.options import ANYONE

if TYPE_CHECKING:
    from collections.abc import Mapping

PROMPT_TOKEN, OUTPUT_TOKEN = 1.0, 2.0
"""What a token counts, as in the paper."""
_MOST_IDLE = 4096  # users without a request whose counters are kept


class Shares:
    """What each user was served, divided by the user's weight: who has the least is next.

    Service is not saved up: who comes after a break starts no lower than those who waited meanwhile.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._other = weights.get(ANYONE, 1.0)
        self._counters: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        self._last = 0.0

    def add(self, user: str) -> None:
        """Note that a request of a user waits."""
        if not self._waiting[user]:
            least = min((self._counters[other] for other in self._waiting if other != user), default=self._last)
            self._counters[user] = max(self._counters.get(user, 0.0), least)
        self._waiting[user] += 1

    def remove(self, user: str) -> None:
        """Note that a request of a user waits no longer."""
        self._waiting[user] -= 1
        if not self._waiting[user]:
            del self._waiting[user]
            self._last = self._counters[user]
            if len(self._counters) > _MOST_IDLE + len(self._waiting):
                self._forget()

    def charge(self, user: str, tokens: float) -> None:
        """Count weighted tokens that a user was served."""
        weight = self._weights.get(user, self._other)
        self._counters[user] = self._counters.get(user, 0.0) + tokens / weight

    def used(self, user: str) -> float:
        """Return a user's counter."""
        return self._counters.get(user, 0.0)

    def _forget(self) -> None:
        """Drop the counters of users who would start no lower without them."""
        least = min((self._counters[user] for user in self._waiting), default=self._last)
        self._counters = {user: used for user, used in self._counters.items() if user in self._waiting or used > least}
