"""Benchmark reports, for tests of code that reads reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.benchmarking.ceiling_report import Ceiling
from trtkit.benchmarking.report import (
    BundleRecord,
    LlmReport,
    MeasuredMachine,
    Provenance,
    TextCase,
    TextResult,
    TextRules,
    TimedCase,
    TimedResult,
    VisionReport,
)
from trtkit.benchmarking.statistics import Total, distribution
from trtkit.benchmarking.timing import Rules

if TYPE_CHECKING:
    from trtkit.benchmarking.metrics import RequestTimes

_MACHINE = MeasuredMachine("a CPU", 4, 2, "Linux 6", (0.5, 0.5, 0.5), 1, (), ())
_BUNDLE = BundleRecord("bundles/tiny", "tiny", "key", "fp32", "tensorrt 10", "target", "UNVERIFIED: never")
_COMMON: dict[str, Any] = {
    "provenance": Provenance("2026-01-01T00:00:00+00:00", "trtkit bench x", _MACHINE, {"torch": "2"}),
    "name": "tiny",
    "computes": "reference executor, CPU",
    "bundle": _BUNDLE,
    "inputs": "random",
    "cuda_graphs": "off",
    "ceiling": Ceiling("none"),
    "gpu_state_after": (),
}


def timed(name: str, latencies: list[float]) -> TimedResult:
    """Return a contender's result. latencies: of its calls, in ms."""
    return TimedResult(
        contender=name,
        computes=f"{name} on CPU",
        metrics={"latency": distribution("ms", latencies), "throughput": Total("samples/sec", 1e3 / latencies[0])},
        samples={"latency": tuple(latencies)},
        drift=0.2,
        is_steady=False,
        starts_ms=tuple(30.0 * index for index in range(len(latencies))),
        warmup_runs=1,
        difference=0.0,
    )


def vision_report(*results: TimedResult, ratios: tuple[Any, ...] = (), **changes: Any) -> VisionReport:
    """Return a network's report with a single case."""
    case = TimedCase(name="images 1x3", shapes={"images": (1, 3)}, batch=1, results=results, ratios=ratios)
    return VisionReport(**{**_COMMON, "rules": Rules(), "cases": (case,), **changes})


def llm_report(*requests: RequestTimes) -> LlmReport:
    """Return a language model's report with a single contender."""
    result = TextResult(
        contender="trtkit",
        computes="reference executor, CPU",
        metrics={
            "request_latency": distribution("ms", [40.0]),
            "output_token_throughput": Total("tokens/sec", 75.0),
        },
        samples={"request_latency": (40.0,)},
        drift=0.0,
        is_steady=True,
        requests=requests,
        reused_tokens=0,
    )
    case = TextCase(name="concurrency 1", concurrency=1, results=(result,))
    return LlmReport(**_COMMON, rules=TextRules(1, 4), objectives={}, cases=(case,))
