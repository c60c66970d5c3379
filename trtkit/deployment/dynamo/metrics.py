"""What a worker's engine does, among the metrics of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trtkit.deployment.engine_metrics import COUNTERS, gauges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from trtkit.runtime.generation import Engine


class EngineCollector(Collector):
    """Reads an engine's counts whenever they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics `trtkit_*`."""
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"trtkit_{name}", text, getattr(self._engine.statistics, name))
        for name, (text, value) in gauges(self._engine).items():
            yield GaugeMetricFamily(f"trtkit_{name}", text, value)


def engine_registry(engine: Engine) -> CollectorRegistry:
    """Return a registry with an engine's metrics."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine))
    return registry
