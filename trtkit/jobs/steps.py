"""What was done to a model, step by step: reported as it happens, kept in the manifest."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]


@dataclass
class Steps:
    """Steps in order; each is reported as it ends."""

    report: Callable[[Json], None]
    done: list[Json] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter)

    def add(self, name: str, detail: str) -> None:
        """Record the step that just ended."""
        now = time.perf_counter()
        step = {"name": name, "detail": detail, "seconds": round(now - self._started, 3)}
        self._started = now
        self.done.append(step)
        self.report({"event": "step", **step})

    def counted(self, name: str, total: int = 0) -> Callable[..., None]:
        """Return what reports how many are done, of `total` or of as many as it is told."""

        def report(done: int, of: int = total) -> None:
            self.report({"event": "progress", "name": name, "done": done, "total": of})

        return report
