"""Benchmark of a bundle of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.benchmarking.llm import bench_llm
from trtkit.benchmarking.provenance import provenance
from trtkit.benchmarking.request import BenchRequest, check_request
from trtkit.benchmarking.vision import bench_vision

if TYPE_CHECKING:
    from trtkit.benchmarking.report import Report
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner


def bench_bundle(bundle: Bundle, request: BenchRequest, runner: Runner, command: str = "trtkit.bench") -> Report:
    """Return the report of a run. command: the command that started it. Raises BenchError, GenerationError."""
    check_request(bundle, request)
    about = provenance(command)
    if bundle.manifest.interface == "tokens":
        return bench_llm(bundle, request, about, runner)
    return bench_vision(bundle, request, about, runner)
