"""What a language model's engine does, among the server's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from trtkit.deployment.engine_metrics import COUNTERS, gauges

if TYPE_CHECKING:
    from trtkit.runtime.generation import Engine


class EngineMetrics:
    """Metrics `trtkit_*` of one model."""

    def __init__(self, engine: Engine, labels: dict[str, str]) -> None:
        self._engine = engine
        self._families: list[Any] = []
        self._counters = {
            name: self._metric(f"{name}_total", text, "COUNTER", labels) for name, text in COUNTERS.items()
        }
        self._gauges = {name: self._metric(name, text, "GAUGE", labels) for name, (text, _) in gauges(engine).items()}
        self._told = dict.fromkeys(COUNTERS, 0)

    def update(self) -> None:
        """Tell the server how things are now."""
        for name, metric in self._counters.items():
            count = getattr(self._engine.statistics, name)
            metric.increment(count - self._told[name])
            self._told[name] = count
        for name, (_, value) in gauges(self._engine).items():
            self._gauges[name].set(value)

    def _metric(self, name: str, text: str, kind: str, labels: dict[str, str]) -> Any:
        family = pb_utils.MetricFamily(f"trtkit_{name}", text, getattr(pb_utils.MetricFamily, kind))
        self._families.append(family)  # a metric ends with its family
        return family.Metric(labels=labels)
