"""What was done to a model, step by step: reported as it happens, kept in the manifest."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from trtkit.jobs.events import Progress, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trtkit.jobs.events import Listener

T = TypeVar("T")


@dataclass
class Steps:
    """Steps in order; each is reported as it ends."""

    report: Listener
    done: list[Step] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter)

    def add(self, name: str, detail: str) -> None:
        """Record the step that just ended."""
        now = time.perf_counter()
        step = Step(name, detail, round(now - self._started, 3))
        self._started = now
        self.done.append(step)
        self.report(step)

    def counted(self, name: str, total: int = 0) -> Callable[..., None]:
        """Return what reports how many are done, of `total` or of as many as it is told."""

        def report(done: int, of: int = total) -> None:
            self.report(Progress(name, done, of))

        return report

    def track(self, name: str, items: Sequence[T]) -> Iterator[T]:
        """Yield the items, and report how many are done."""
        report = self.counted(name, len(items))
        for index, item in enumerate(items):
            yield item
            report(index + 1)
