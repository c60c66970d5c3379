"""Benchmark results: one report for networks of arrays and one for language models, with their JSON form."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from trtkit.backends.gpu import Gpu
from trtkit.benchmarking.ceiling_report import Ceiling, MeasuredRates, PhaseLayers, PublishedRates, Reached
from trtkit.benchmarking.metrics import RequestTimes
from trtkit.benchmarking.statistics import Interval, Metric, SampleStatistics
from trtkit.benchmarking.timing import Rules
from trtkit.errors import BenchError
from trtkit.jobs.json_form import from_json, to_json
from trtkit.pages import HasPage

VERSION = 1
"""Version of the reports' JSON form."""
_FIX = "give a file that `trtkit bench --save` of this version of trtkit wrote"


@dataclass(frozen=True)
class MeasuredMachine:
    """The machine of a measurement, and its state before. gpu_state: of each GPU, by nvidia-smi's names."""

    processor: str
    cores: int | None
    usable_cores: int
    system: str
    load_average: tuple[float, ...]
    torch_threads: int
    gpus: tuple[Gpu, ...]
    gpu_state: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class Provenance:
    """When, by which command, where and with which versions a report was made."""

    measured_at: str
    command: str
    machine: MeasuredMachine
    versions: dict[str, str]


@dataclass(frozen=True)
class BundleRecord:
    """The identity of a bundle. verification: how it was verified."""

    path: str
    name: str
    build_key: str
    precision: str
    backend: str
    target: str
    verification: str

    @property
    def is_unverified(self) -> bool:
        """Whether it was measured although it was not verified."""
        return self.verification.startswith("UNVERIFIED")


@dataclass(frozen=True, kw_only=True)
class Ratio(Interval):
    """How much longer one contender takes than another."""

    numerator: str
    denominator: str
    metric: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """One contender's figures. computes: what ran the model. samples: by metric, in ms.

    drift: how much slower the last third is than the first. ceilings: by metric.
    """

    contender: str
    computes: str
    metrics: dict[str, Metric]
    samples: dict[str, tuple[float, ...]]
    drift: float
    is_steady: bool
    ceilings: dict[str, Reached] = field(default_factory=dict)

    def distribution(self, metric: str) -> SampleStatistics | None:
        """Return a metric's distribution, None if there is none."""
        value = self.metrics.get(metric)
        return value if isinstance(value, SampleStatistics) else None


@dataclass(frozen=True, kw_only=True)
class TimedResult(Result):
    """Results of calls in rounds. difference: largest relative RMS error of outputs against the first contender's."""

    starts_ms: tuple[float, ...]
    warmup_runs: int
    difference: float | None


@dataclass(frozen=True, kw_only=True)
class ServedResult(Result):
    """Results of a load on a served network."""

    requests: tuple[RequestTimes, ...]
    difference: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TextResult(Result):
    """Results of a load on a language model. same_tokens: share equal to the first contender's, None if unknown.

    reused_tokens: prompt tokens found in a cache. restored_tokens: those of them found in host memory.
    """

    requests: tuple[RequestTimes, ...]
    reused_tokens: int
    same_tokens: float | None = None
    restored_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """All contenders on the same work. ratios: of the first contender to each of the others."""

    name: str
    results: tuple[Result, ...]
    ratios: tuple[Ratio, ...] = ()
    phases: tuple[PhaseLayers, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimedCase(Case):
    """Calls at one shape. batch: samples per call."""

    shapes: dict[str, tuple[int, ...]]
    batch: int
    results: tuple[TimedResult, ...]


@dataclass(frozen=True, kw_only=True)
class ServedCase(Case):
    """A load on a served network. concurrency: None if requests are sent at their due times."""

    shapes: dict[str, tuple[int, ...]]
    batch: int
    concurrency: int | None
    results: tuple[ServedResult, ...]


@dataclass(frozen=True, kw_only=True)
class TextCase(Case):
    """A load on a language model. concurrency: None if requests are sent at their due times."""

    concurrency: int | None
    results: tuple[TextResult, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class _BenchReport(HasPage):
    """The common part of both reports. gpu_state_after: after the measurement, as in MeasuredMachine.

    inputs, cuda_graphs: descriptions. axes: the metrics of latency and throughput.
    """

    axes: ClassVar[tuple[str, str]]
    provenance: Provenance
    name: str
    computes: str
    bundle: BundleRecord
    inputs: str
    cuda_graphs: str
    ceiling: MeasuredRates | PublishedRates | Ceiling
    gpu_state_after: tuple[dict[str, str], ...]
    cases: tuple[Case, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for users."""
        return {"version": VERSION, **to_json(self)}

    def __repr__(self) -> str:
        """Return one line for what ran the model, and one for each case and contender."""
        latency, rate = self.axes
        lines = [f"{self.name}: {self.computes}"]
        for case in self.cases:
            for result in case.results:
                times, many = result.distribution(latency), result.metrics.get(rate)
                figures = [f"{times.p50:.4g} ms p50"] if times else ["no request succeeded"]
                figures += [f"{many.avg:.4g} {many.unit}"] if many else []
                lines.append(f"{case.name}, {result.contender}: {', '.join(figures)}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, repr=False)
class VisionReport(_BenchReport):
    """The benchmark of a vision model, or of any network of arrays."""

    axes = ("latency", "throughput")
    kind: Literal["vision"] = "vision"
    transfers: str = "from and to the host's memory in every latency"
    rules: Rules
    cases: tuple[TimedCase | ServedCase, ...]


@dataclass(frozen=True)
class TextRules:
    """How requests were answered. warmup_tokens: per answer, before the measurement."""

    rounds: int
    warmup_tokens: int
    greedy: bool = True
    ignore_eos: bool = True


@dataclass(frozen=True, kw_only=True, repr=False)
class LlmReport(_BenchReport):
    """The benchmark of a language model. objectives: in ms, by metric."""

    axes = ("request_latency", "output_token_throughput")
    kind: Literal["llm"] = "llm"
    rules: TextRules
    objectives: dict[str, float]
    cases: tuple[TextCase, ...]


Report = VisionReport | LlmReport


def report_text(report: Report) -> str:
    """Return the report as JSON text."""
    return json.dumps(report.to_json(), indent=1) + "\n"


def read_report(path: str) -> Report:
    """Return a written report. Raises BenchError that names the file and the invalid field."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"the report cannot be read: {error.strerror}", path, _FIX) from None
    except ValueError as error:
        raise BenchError(f"not a report: {error}", path, _FIX) from None
    kinds: dict[str, type[Report]] = {"vision": VisionReport, "llm": LlmReport}
    fields = data if isinstance(data, dict) else {}
    for name, values in (("version", (VERSION,)), ("kind", tuple(kinds))):
        if fields.get(name) not in values:
            what = f"`{name}` is {json.dumps(fields[name])[:40]}" if name in fields else f"`{name}` is missing"
            raise BenchError(f"not a report of version {VERSION}: {what}", path, _FIX)
    try:
        return from_json(kinds[fields["kind"]], {name: value for name, value in fields.items() if name != "version"})
    except (TypeError, ValueError) as error:
        raise BenchError(f"not a report of version {VERSION}: {error}", path, _FIX) from None


_STATISTICS = ("avg", "min", "max", "sum", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std", "count")
_CEILING = ("ceiling", "reached", "bound")
_HEAD = ("name", "case", "contender", "computes", "metric", "unit")


def csv_text(report: Report) -> str:
    """Return one line per figure: case, contender, what ran it, metric, statistics, ceiling, verification."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*_HEAD, *_STATISTICS, *_CEILING, "is_steady", "verification"])
    for case in report.cases:
        for result in case.results:
            for figures in _figures(result):
                head = [report.name, case.name, result.contender, result.computes]
                rows.writerow([*head, *figures, result.is_steady, report.bundle.verification])
    return out.getvalue()


def _figures(result: Result) -> Iterator[list[object]]:
    """Yield each metric with its unit, statistics and ceiling; missing values are empty."""
    for name, metric in result.metrics.items():
        statistics, ceiling = vars(metric), vars(result.ceilings[name]) if name in result.ceilings else {}
        figures = [*(statistics.get(name, "") for name in _STATISTICS), *(ceiling.get(name, "") for name in _CEILING)]
        yield [name, metric.unit, *figures]
