"""A worker of a fleet: its process, and whether it shows life."""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.deployment.dynamo.worker_options import ASLEEP, SILENT
from trtkit.deployment.ports import open_local

if TYPE_CHECKING:
    from trtkit.deployment.process import ServerProcess

MOST_FAILURES = 3
_TIMEOUT_S, _OPEN_S = 5, 600
_METRIC = re.compile(r"^(trtkit_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass
class Member:
    """A worker: its process, where it says how it is, and when it failed. is_started: whether it has ever served."""

    number: int
    process: ServerProcess
    health_port: int
    failures: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_FAILURES))
    is_started: bool = False
    heard_s: float = field(default_factory=time.monotonic)

    @property
    def is_healthy(self) -> bool:
        """Whether it says that it serves."""
        return self._read("health") is not None

    def is_hung(self, limit_s: float) -> bool:
        """Whether a step of its engine, or an answer to this question, has taken longer than the limit.

        A busy engine may keep Dynamo's own probe waiting, one that is asleep refuses it, an idle one may do neither.
        Opening a bundle may take ten minutes.
        """
        self.is_started = self.is_started or self.is_healthy
        text = self._read("metrics") if self.is_started else None
        values = {name: float(value) for name, value in _METRIC.findall(text or "")}
        if values.get(SILENT, 0.0) > limit_s:
            return True
        is_busy = any(values.get(name) for name in ("trtkit_slots_busy", "trtkit_requests_waiting", ASLEEP))
        if text is not None and (is_busy or self.is_healthy):
            self.heard_s = time.monotonic()
        return time.monotonic() - self.heard_s > (limit_s if self.is_started else max(limit_s, _OPEN_S))

    def _read(self, path: str) -> str | None:
        """Return what its own port answers, None if that is no 200."""
        try:
            with open_local(f"http://127.0.0.1:{self.health_port}/{path}", timeout=_TIMEOUT_S) as answer:
                return str(answer.read().decode())
        except OSError:
            return None
