"""Results in AIPerf's form: `profile_export_aiperf.json`, its CSV, and one line per request.

Shape and names: ai-dynamo/aiperf 0.13, schema 1.4. There `request_latency` and `time_to_first_token` count from the
time of sending; `effective_latency` counts from the due time. AIPerf's other files and its per-connection HTTP metrics
have no counterpart here.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from trtkit.benchmarking.metrics import load_metrics, record_of
from trtkit.benchmarking.statistics import PERCENTILES, SampleStatistics, distribution
from trtkit.errors import BenchError
from trtkit.files import write_output
from trtkit.jobs.json_form import to_json

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.benchmarking.metrics import RequestRecord
    from trtkit.benchmarking.report import LlmReport, TextCase, TextResult
    from trtkit.benchmarking.statistics import Metric

Json = dict[str, Any]
SCHEMA = "1.4"
_STATISTICS = ("avg", "min", "max", "sum", *(f"p{percent}" for percent in PERCENTILES), "std")
_HEADERS = {
    "error_request_count": "Error Request Count", "inter_chunk_latency": "Inter Chunk Latency",
    "total_osl": "Total Output Sequence Length", "total_isl": "Total Input Sequence Length",
    "effective_latency": "Effective Latency (CO-aware)", "time_to_first_token": "Time to First Token",
    "time_to_second_token": "Time to Second Token",
}  # fmt: skip


def write_aiperf(folder: Path, report: LlmReport) -> list[Path]:
    """Write each case of each contender to its own folder, or to `folder` if there is only one.

    Return the written files. Raises BenchError if they cannot be written.
    """
    runs = [(case, result) for case in report.cases for result in case.results]
    written = []
    for case, result in runs:
        name = re.sub(r"[^a-z0-9.]+", "-", f"{case.name}-{result.contender}".lower()).strip("-")
        run_folder = folder if len(runs) == 1 else folder / name
        try:
            run_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(
                f"cannot be written: {error.strerror}", str(run_folder), "choose a writable folder"
            ) from None
        texts = {
            "profile_export_aiperf.json": json.dumps(summary_json(report, case, result), indent=2) + "\n",
            "profile_export_aiperf.csv": summary_csv(result),
            "profile_export.jsonl": requests_jsonl(report, result),
        }
        for file, text in texts.items():
            write_output(run_folder / file, text)
            written.append(run_folder / file)
    return written


def summary_json(report: LlmReport, case: TextCase, result: TextResult) -> Json:
    """Return `profile_export_aiperf.json` of one load."""
    about = report.provenance
    start = datetime.fromisoformat(about.measured_at).replace(tzinfo=None)
    metrics = aiperf_metrics(result)
    seconds = metrics["benchmark_duration"].avg
    run_id = sha256(f"{to_json(about)} {case.name} {result.contender}".encode()).hexdigest()[:12]
    kind = "concurrency" if case.concurrency else "fixed_schedule"
    phase: Json = {"name": "profiling", "kind": "profiling", "type": kind, "requests": len(result.requests)}
    phase |= {"concurrency": case.concurrency} if case.concurrency else {}
    details = {"model": report.name, "computes": result.computes, "bundle": to_json(report.bundle), "phase": phase}
    return {
        "schema_version": SCHEMA,
        "benchmark_id": run_id,
        **to_json(metrics),
        "run_info": {"benchmark_id": run_id, "trial": 0, "cli_command": about.command},
        "was_cancelled": False,
        "is_complete": True,
        "error_summary": _errors(result),
        "start_time": start.isoformat(),
        "end_time": (start + timedelta(seconds=seconds)).isoformat(),
        "trtkit": details,
    }


def aiperf_metrics(result: TextResult) -> dict[str, Metric]:
    """Return the metrics as defined by AIPerf: latencies count from the time of sending."""
    records = [record_of(request) for request in result.requests]
    metrics = load_metrics([replace(record, due_s=record.sent_s) for record in records], {})
    metrics |= {name: result.metrics[name] for name in ("goodput", "good_request_count") if name in result.metrics}
    effective = [record.latency_s * 1e3 for record in records if not record.error]
    return metrics | ({"effective_latency": distribution("ms", effective)} if effective else {})


def summary_csv(result: TextResult) -> str:
    """Return `profile_export_aiperf.csv`: request metrics, a blank line, totals."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    metrics = sorted((_header(name, metric), metric) for name, metric in aiperf_metrics(result).items())
    rows.writerow(["Metric", *_STATISTICS])
    for header, metric in metrics:
        if isinstance(metric, SampleStatistics):
            rows.writerow([header, *(f"{vars(metric)[name]:.2f}" for name in _STATISTICS)])
    rows.writerow([])
    rows.writerow(["Metric", "Value"])
    rows.writerows(
        [header, f"{metric.avg:.2f}"] for header, metric in metrics if not isinstance(metric, SampleStatistics)
    )
    return out.getvalue()


def requests_jsonl(report: LlmReport, result: TextResult) -> str:
    """Return `profile_export.jsonl`: metadata and metrics of each successful request."""
    start_ns = round(datetime.fromisoformat(report.provenance.measured_at).timestamp() * 1e9)
    lines = [_line(index, record_of(request), start_ns) for index, request in enumerate(result.requests)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def _line(index: int, record: RequestRecord, start_ns: int) -> Json:
    moments = {"credit_issued_ns": record.due_s, "request_start_ns": record.sent_s, "request_end_ns": record.ended_s}
    metadata: Json = {"session_num": index, **{name: start_ns + round(value * 1e9) for name, value in moments.items()}}
    metadata |= {"benchmark_phase": "profiling", "was_cancelled": False}
    metadata |= {"worker_id": "trtkit", "record_processor_id": "trtkit"}
    if record.error:
        return {"metadata": metadata, "metrics": {}, "error": {"type": "TrtkitError", "message": record.error}}
    metrics = load_metrics([replace(record, due_s=record.sent_s)], {})
    single: Json = {
        name: {"value": metric.avg, "unit": metric.unit}
        for name, metric in metrics.items()
        if isinstance(metric, SampleStatistics)
    }
    if "inter_chunk_latency" in single:
        single["inter_chunk_latency"]["value"] = [gap * 1e3 for gap in record.gaps_s]
    return {"metadata": metadata, "metrics": single}


def _errors(result: TextResult) -> list[Json]:
    messages = [request.error for request in result.requests if request.error]
    return [
        {"error_details": {"type": "TrtkitError", "message": message}, "count": messages.count(message)}
        for message in sorted(set(messages))
    ]


def _header(name: str, metric: Metric) -> str:
    """Return AIPerf's column heading; request counts have no unit there."""
    header = _HEADERS.get(name, name.replace("_", " ").title())
    return header if metric.unit == "requests" else f"{header} ({metric.unit})"
