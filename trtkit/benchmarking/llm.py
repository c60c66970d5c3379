"""Measure a language model: a load for each case, each contender in turn, metrics by AIPerf's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.benchmarking.contenders import graphs_said
from trtkit.benchmarking.intervals import ratio_of_medians
from trtkit.benchmarking.llm_ceiling import add_ceilings
from trtkit.benchmarking.metrics import load_metrics
from trtkit.benchmarking.provenance import bundle_record, gpu_state, verification
from trtkit.benchmarking.records import joined, request_json
from trtkit.benchmarking.schedules import Schedule
from trtkit.benchmarking.served import Endpoint, ServedText
from trtkit.benchmarking.static_batches import TRANSFORMERS, TransformersServer
from trtkit.benchmarking.text_server import EngineServer
from trtkit.benchmarking.timing import STEADY_DRIFT, drift_of
from trtkit.benchmarking.workload import Work, check_fits
from trtkit.bundle.bundle import is_bundle, open_bundle
from trtkit.engine.decoders import llm_options
from trtkit.errors import BenchError
from trtkit.jobs.events import Phase
from trtkit.runtime.decoder import runs_on_gpu
from trtkit.runtime.llm import LLM

if TYPE_CHECKING:
    from trtkit.benchmarking.records import Record
    from trtkit.benchmarking.text_server import Served, TextServer
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]
MakeWork = Callable[[int], Sequence[Work]]
COMPARED = ("request_latency", "time_to_first_token", "inter_token_latency")
_WARMUP_TOKENS = 4


@dataclass(frozen=True)
class LlmRequest:
    """What to measure.

    schedules: a case each. work: a round's requests, by its number: every round has other prompts, since a cache may
    hold those of the one before. said: what they are, in words. objectives: in ms by metric, for goodput. options: of
    LlmOptions. endpoint: URL and model of a server that has the bundle, None to run it in this process.
    has_cuda_graphs: None for what is usual.
    """

    schedules: Sequence[Schedule]
    work: MakeWork
    said: str
    rounds: int = 1
    objectives: dict[str, float] = field(default_factory=dict)
    rivals: tuple[str, ...] = ()
    is_waived: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    endpoint: tuple[str, str | None] | None = None
    has_cuda_graphs: bool | None = None


def bench_llm(bundle: Bundle, request: LlmRequest, runner: Runner) -> Json:
    """Return what the report of a run says, but for its provenance. Raises BenchError, GenerationError."""
    verified = verification(bundle, is_waived=request.is_waived)
    check_fits(request.work(0), llm_options(bundle.manifest.config).max_sequence_length, str(bundle.path))
    graphs = _graphs(request)
    runner.report(Phase("load"))
    servers: list[TextServer] = [_measured(bundle, request)]
    servers += [_rival(asked, bundle, request) for asked in request.rivals]
    cases = [measure_case(servers, index, request, runner) for index in range(len(request.schedules))]
    state = gpu_state()
    ceiling = add_ceilings(bundle, servers, cases, runner)
    return {
        "kind": "llm",
        "name": bundle.manifest.name,
        "computes": servers[0].computes,
        "bundle": bundle_record(bundle, verified),
        "inputs": request.said,
        "rules": {"rounds": request.rounds, "warmup_tokens": _WARMUP_TOKENS, "greedy": True, "ignore_eos": True},
        "objectives": request.objectives,
        "cuda_graphs": graphs,
        "ceiling": ceiling.to_json(),
        "gpu_state_after": state,
        "cases": cases,
    }


def measure_case(servers: Sequence[TextServer], index: int, request: LlmRequest, runner: Runner) -> Json:
    """Give every server the load of case `index`, round by round in turn; return figures, requests and ratios."""
    schedule = request.schedules[index]
    for server in servers:
        runner.report(Phase(f"warm up {server.name}"))
        _warm_up(server, request.work(-1), schedule)
    served: dict[str, list[Served]] = {server.name: [] for server in servers}
    for number in range(request.rounds):
        work, first = request.work(index * request.rounds + number), number % len(servers)
        for server in [*servers[first:], *servers[:first]]:
            runner.report(Phase(f"{schedule.name}, round {number + 1} of {request.rounds}, {server.name}"))
            served[server.name].append(server.serve(work, schedule))
    ours = served[servers[0].name]
    results = [_result(server, served[server.name], request) | _same(ours, served[server.name]) for server in servers]
    ratios = [ratio for server in servers[1:] for ratio in _ratios(servers[0], ours, server, served[server.name])]
    return {"name": schedule.name, "concurrency": schedule.concurrency, "results": results, "ratios": ratios}


def load_result(server: TextServer, records: Sequence[Record], objectives: dict[str, float]) -> Json:
    """Return one server's figures, samples and requests."""
    done = [record for record in records if not record.error]
    latencies = [record.latency_s for record in sorted(done, key=lambda record: record.due_s)]
    drift = drift_of(latencies) if latencies else 0.0
    return {
        "contender": server.name,
        "computes": server.computes,
        "metrics": load_metrics(records, objectives),
        "samples": _samples(done),
        "requests": [request_json(record) for record in records],
        "reused_tokens": sum(record.reused_tokens for record in done),
        "drift": drift,
        "is_steady": abs(drift) <= STEADY_DRIFT,
    }


def _measured(bundle: Bundle, request: LlmRequest) -> TextServer:
    """Return the bundle in this process, or as a server has it."""
    if request.endpoint is None:
        return _own(bundle, request)
    url, model = request.endpoint
    return ServedText(Endpoint(url, model or bundle.manifest.name))


def _graphs(request: LlmRequest) -> str:
    """Return in words whether CUDA graphs are used; see `graphs_said`."""
    if request.endpoint is not None:
        return "as the server has it"
    return graphs_said(
        request.has_cuda_graphs, has_engine=runs_on_gpu(request.options.get("runtime", "auto")), are_usual=True
    )


def _own(bundle: Bundle, request: LlmRequest, name: str = "trtkit") -> EngineServer:
    graphs = {} if request.has_cuda_graphs is None else {"has_cuda_graphs": request.has_cuda_graphs}
    return EngineServer(LLM(bundle, **request.options, **graphs), bundle.manifest.config.precision, name)


def _rival(asked: str, bundle: Bundle, request: LlmRequest) -> TextServer:
    if asked == TRANSFORMERS and any(schedule.concurrency is None for schedule in request.schedules):
        what = "transformers runs batches, not requests that arrive"
        raise BenchError(what, f"--compare {TRANSFORMERS}", "compare at a --concurrency")
    if asked == TRANSFORMERS:
        return TransformersServer(bundle.manifest.config)
    if not is_bundle(Path(asked)):
        fix = f"use {TRANSFORMERS}, or the folder of another language model's bundle"
        raise BenchError(f"`{asked}` is nothing to compare a language model with", "--compare", fix)
    other = open_bundle(asked)
    verification(other, is_waived=request.is_waived)
    if other.manifest.interface != "tokens":
        raise BenchError("the bundle holds no language model", f"--compare {asked}", "compare models of one kind")
    check_fits(request.work(0), llm_options(other.manifest.config).max_sequence_length, asked)
    return _own(other, request, asked)


def _warm_up(server: TextServer, work: Sequence[Work], schedule: Schedule) -> None:
    """Answer a few requests shortly, at the case's concurrency."""
    level = max(2, schedule.concurrency or 1)
    short = [Work(each.prompt_ids, min(each.output_tokens, _WARMUP_TOKENS)) for each in work[:level]]
    server.serve(short, Schedule("warm up", level))


def _result(server: TextServer, served: Sequence[Served], request: LlmRequest) -> Json:
    return load_result(server, joined([each.records for each in served]), request.objectives)


def _samples(done: Sequence[Record]) -> dict[str, list[float]]:
    """Return what a comparison draws from, in ms: one value a request that succeeded."""
    values: dict[str, list[float | None]] = {
        "request_latency": [record.latency_s for record in done],
        "time_to_first_token": [record.time_to_first_token_s for record in done],
        "inter_token_latency": [record.time_per_output_token_s for record in done],
    }
    return {name: [value * 1e3 for value in found if value is not None] for name, found in values.items()}


def _same(ours: Sequence[Served], theirs: Sequence[Served]) -> Json:
    """Return the share of tokens that are those of the first contender; None where they are not known."""
    pairs = [
        (mine, other)
        for our, their in zip(ours, theirs, strict=True)
        for mine, other in zip(our.tokens, their.tokens, strict=False)
    ]
    same = [a == b for mine, other in pairs for a, b in zip(mine, other, strict=False)]
    return {"same_tokens": sum(same) / len(same) if same else None}


def _ratios(first: TextServer, ours: Sequence[Served], other: TextServer, theirs: Sequence[Served]) -> list[Json]:
    """Return how much longer the first takes, metric by metric; requests are pairs where all succeeded."""
    mine, its = (_samples(joined([each.records for each in served])) for served in (ours, theirs))
    found = []
    for metric in COMPARED:
        if not mine[metric] or not its[metric]:
            continue
        interval = ratio_of_medians(mine[metric], its[metric], is_paired=len(mine[metric]) == len(its[metric]))
        found.append({"numerator": first.name, "denominator": other.name, "metric": metric, **interval.to_json()})
    return found
