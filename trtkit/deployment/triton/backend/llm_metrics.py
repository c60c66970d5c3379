"""What a language model's engine does, among the server's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from trtkit.runtime.generation import Engine

_COUNTERS = {
    "generated_tokens": "Tokens of answers.",
    "prompt_tokens": "Tokens of prompts that were computed.",
    "reused_tokens": "Tokens of prompts that were found in a cache.",
    "preemptions": "Sequences that gave their slot to another and came back later.",
}
_GAUGES = {
    "slots_busy": "Slots with a sequence in them.",
    "slots": "Slots of the engine.",
    "requests_waiting": "Prompts that wait for a slot.",
}


class EngineMetrics:
    """Metrics `trtkit_*` of one model."""

    def __init__(self, engine: Engine, labels: dict[str, str]) -> None:
        self._engine = engine
        self._families: list[Any] = []
        self._counters = {
            name: self._metric(f"{name}_total", text, "COUNTER", labels) for name, text in _COUNTERS.items()
        }
        self._gauges = {name: self._metric(name, text, "GAUGE", labels) for name, text in _GAUGES.items()}
        self._told = dict.fromkeys(_COUNTERS, 0)

    def update(self) -> None:
        """Tell the server how things are now."""
        engine = self._engine
        for name, metric in self._counters.items():
            count = getattr(engine.statistics, name)
            metric.increment(count - self._told[name])
            self._told[name] = count
        self._gauges["slots"].set(engine.execution.slots)
        self._gauges["slots_busy"].set(engine.execution.slots - engine.free_slots)
        self._gauges["requests_waiting"].set(engine.waiting)

    def _metric(self, name: str, text: str, kind: str, labels: dict[str, str]) -> Any:
        family = pb_utils.MetricFamily(f"trtkit_{name}", text, getattr(pb_utils.MetricFamily, kind))
        self._families.append(family)  # a metric ends with its family
        return family.Metric(labels=labels)
