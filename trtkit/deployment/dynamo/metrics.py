"""What a worker's engine does, among the metrics of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from trtkit.deployment.dynamo.worker_options import ASLEEP, SILENT
from trtkit.deployment.engine_metrics import COUNTERS, gauges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from trtkit.runtime.llm import EngineThread


class EngineCollector(Collector):
    """Reads an engine's counts whenever they are asked for."""

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics `trtkit_*`."""
        engine = self._thread.frontend.awake_engine
        yield GaugeMetricFamily(SILENT, "Seconds that the engine's step takes by now.", self._thread.silent_s)
        yield GaugeMetricFamily(ASLEEP, "1 while the model is asleep.", float(engine is None))
        if engine is None:
            return
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"trtkit_{name}", text, getattr(engine.statistics, name))
        for name, (text, value) in gauges(engine).items():
            yield GaugeMetricFamily(f"trtkit_{name}", text, value)


def engine_registry(thread: EngineThread) -> CollectorRegistry:
    """Return a registry with the metrics of a thread's engine."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(thread))
    return registry
