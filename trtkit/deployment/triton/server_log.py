"""Triton's log, line by line: what is worth a look."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

# `E1121 14:32:11.123456 1234 model_lifecycle.cc:654] "failed to load 'm' version 1: Internal: ..."`
_LINE = re.compile(r'([IWEF])\d{4} \d\d:\d\d:\d\d\S* \d+ \S+\] "?(.*?)"?\s*$')
_KEPT = 4000
# Said on every machine without a GPU.
_NOISE = (
    "NVML", "DCGM", "pinned", "CUDA memory pool", "CudaDriverHelper", "cudaGetDeviceCount", "no CUDA-capable",
)  # fmt: skip


@dataclass
class ServerLog:
    """The last lines of a server's log."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def text(self) -> str:
        """All lines that are kept."""
        return "\n".join(self.lines)

    def errors(self, count: int = 4) -> list[str]:
        """Return the last messages of level error, each once."""
        errors = [message(line) for line in list(self.lines) if level(line) in {"E", "F"} and not is_noise(line)]
        return list(dict.fromkeys(errors))[-count:]


def level(line: str) -> str:
    """Return I, W, E or F as Triton wrote it; a line that a model printed is I."""
    match = _LINE.match(line)
    return match.group(1) if match else "I"


def message(line: str) -> str:
    """Return the line without level, time, process and source."""
    match = _LINE.match(line)
    return match.group(2) if match else line


def is_noise(line: str) -> bool:
    """Whether the line only says that there is no GPU."""
    return any(word in line for word in _NOISE)
