"""Measure a bundle of any kind, with made-up prompts if it is a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.benchmarking.llm import LlmRequest, bench_llm
from trtkit.benchmarking.provenance import provenance
from trtkit.benchmarking.schedules import concurrency_schedules
from trtkit.benchmarking.vision import VisionRequest, bench_vision
from trtkit.benchmarking.workload import Lengths, drawn_tokens, synthetic_rounds
from trtkit.errors import BenchError

if TYPE_CHECKING:
    from trtkit.benchmarking.report import Report
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner

_REQUESTS = 16


@dataclass(frozen=True)
class BenchRequest:
    """What to measure; None and empty for the defaults.

    batches: of a network of arrays. concurrency, requests, lengths: of a language model. rivals, is_waived,
    trusts_source: see VisionRequest.
    """

    rivals: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    concurrency: tuple[int, ...] = ()
    requests: int | None = None
    lengths: Lengths | None = None
    runtime: str = "auto"
    is_waived: bool = False
    trusts_source: bool = False


def bench_bundle(bundle: Bundle, request: BenchRequest, runner: Runner) -> Report:
    """Return the report of a run. Raises BenchError, GenerationError."""
    _check(bundle, request)
    about = provenance("trtkit.bench")
    if bundle.manifest.interface == "arrays":
        arrays = VisionRequest(
            request.batches,
            request.rivals,
            request.runtime,
            request.is_waived,
            trusts_source=request.trusts_source,
        )
        return bench_vision(bundle, arrays, about, runner)
    count, vocab_size = request.requests or _REQUESTS, drawn_tokens(bundle.manifest)
    make, description = synthetic_rounds(request.lengths or Lengths(), count, vocab_size, seed=0)
    text = LlmRequest(
        concurrency_schedules(request.concurrency or (1,)),
        make,
        description,
        rounds=3 if request.rivals else 1,
        rivals=request.rivals,
        is_waived=request.is_waived,
        options={"runtime": request.runtime},
    )
    return bench_llm(bundle, text, about, runner)


def _check(bundle: Bundle, request: BenchRequest) -> None:
    """Refuse what the bundle cannot be measured by, and numbers below 1. Raises BenchError."""
    lengths = request.lengths
    sizes = None if lengths is None else (lengths.input_tokens, lengths.output_tokens)
    text = {"concurrency": request.concurrency, "requests": request.requests, "input_tokens, output_tokens": sizes}
    other = {"batches": request.batches} if bundle.manifest.interface == "tokens" else text
    kind = "a language model" if bundle.manifest.interface == "tokens" else "a network of arrays"
    for name, value in other.items():
        if value not in (None, ()):
            raise BenchError(f"`{name}` means nothing for {kind}", str(bundle.path), "leave it out")
    counts = [
        *request.batches,
        *request.concurrency,
        *(sizes or ()),
        1 if request.requests is None else request.requests,
    ]
    if min(counts) < 1:
        raise BenchError(f"{min(counts)} is below 1", str(bundle.path), "give numbers of at least 1")
