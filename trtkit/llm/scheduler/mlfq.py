"""The skip-join multi-level feedback queue of FastServe, https://arxiv.org/abs/2305.05920."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtkit.llm.scheduler.options import ScheduleOptions, SchedulingParams
    from trtkit.llm.scheduler.turn import Turn

_MEMORY = 0.99  # share of what was measured that a step's measurement leaves


class FeedbackQueue:
    """Levels with growing quanta. A request that used up its level's quantum moves one down.

    It does not start at the top, but on the first level whose quantum covers its prompt: the time for that is known
    from prompts before it. Requests often give way, so none does whose work would be lost.
    """

    is_by_deadline, measures, keeps_work = True, True, True

    def __init__(self, options: ScheduleOptions) -> None:
        self.starvation_s = options.starvation_s
        self._quanta = [options.quantum_s * options.ratio**level for level in range(options.levels - 1)]
        self._prompt_s, self._prompt_tokens = 0.0, 0.0

    def level(self, scheduling: SchedulingParams, prompt_tokens: int) -> int:  # noqa: ARG002
        """Return the highest level whose quantum covers the prompt, the last if none does."""
        needed_s = prompt_tokens * self._prompt_s / self._prompt_tokens if self._prompt_tokens else 0.0
        return next((level for level, quantum in enumerate(self._quanta) if needed_s <= quantum), len(self._quanta))

    def charge(self, turns: Iterable[Turn], seconds: float, prompt_tokens: int) -> bool:
        """Count a step against the quanta of those it served. The last level has no quantum."""
        if prompt_tokens:
            self._prompt_s = _MEMORY * self._prompt_s + seconds
            self._prompt_tokens = _MEMORY * self._prompt_tokens + prompt_tokens
        has_moved = False
        for turn in turns:
            turn.used_s += seconds
            if self.left_s(turn) <= 0:
                turn.level, turn.used_s, turn.is_promoted = turn.level + 1, 0.0, False
                has_moved = True
        return has_moved

    def left_s(self, turn: Turn) -> float:
        """Return the seconds of service after which a request moves down.

        Each promotion doubles what a promoted request gets. So it ends even if each time it gives way its work is lost,
        and two of them cannot take each other's slot forever.
        """
        if turn.level >= len(self._quanta):
            return math.inf
        return self._quanta[turn.level] * (2.0**turn.promotions if turn.is_promoted else 1.0) - turn.used_s
