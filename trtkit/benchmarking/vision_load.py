"""A load on a served network: so many requests at once, or sent when they are due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.benchmarking.load import Answer, drive
from trtkit.benchmarking.metrics import duration_s, load_metrics
from trtkit.benchmarking.records import request_times
from trtkit.benchmarking.report import ServedCase, ServedResult
from trtkit.benchmarking.served import workers_of
from trtkit.benchmarking.statistics import Total, distribution
from trtkit.benchmarking.timing import STEADY_DRIFT, drift_of
from trtkit.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.benchmarking.contenders import Contender
    from trtkit.benchmarking.records import Record
    from trtkit.benchmarking.schedules import Schedule
    from trtkit.benchmarking.shapes import ShapeCase
    from trtkit.inputs.samples import Sample

_WARMUP = 3
_COUNTED = ("request_count", "error_request_count", "request_throughput", "goodput", "good_request_count")


def measure_load(
    case: ShapeCase, schedule: Schedule, served: Contender, sample: Sample, load: tuple[int, Mapping[str, float]]
) -> ServedCase:
    """Send one sample again and again; return figures and requests. load: how many requests, and objectives in ms.

    Latencies count from when a request was due. Raises BenchError if no request succeeds.
    """
    count, objectives = load
    for _ in range(_WARMUP):
        served.run(sample.inputs)

    def send(_index: int) -> Answer:
        served.run(sample.inputs)
        return Answer()

    records = drive(send, *workers_of(schedule, count))
    return ServedCase(
        name=f"{case.name}, {schedule.name}",
        shapes=case.shapes,
        batch=case.batch,
        concurrency=schedule.concurrency,
        results=(_result(served, records, case.batch, objectives),),
    )


def _result(served: Contender, records: Sequence[Record], batch: int, objectives: Mapping[str, float]) -> ServedResult:
    """Return the load's figures. throughput: samples a second over the whole load."""
    done = sorted((record for record in records if not record.error), key=lambda record: record.due_s)
    if not done:
        raise BenchError(f"no request succeeded: {records[0].error}", served.computes)
    latencies, drift = [record.latency_s * 1e3 for record in done], drift_of([record.latency_s for record in done])
    counted = load_metrics(records, objectives)
    rate = batch * len(done) / duration_s(records)
    return ServedResult(
        contender=served.name,
        computes=served.computes,
        metrics={
            "latency": distribution("ms", latencies),
            "throughput": Total("samples/sec", rate),
            **{name: counted[name] for name in _COUNTED if name in counted},
        },
        samples={"latency": tuple(latencies)},
        requests=tuple(map(request_times, records)),
        drift=drift,
        is_steady=abs(drift) <= STEADY_DRIFT,
    )
