"""Measure a language model: a load for each case, each contender in turn, metrics by AIPerf's names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.benchmarking.contenders import graphs_text
from trtkit.benchmarking.intervals import ratio_of_medians
from trtkit.benchmarking.llm_ceiling import with_ceilings
from trtkit.benchmarking.metrics import load_metrics
from trtkit.benchmarking.provenance import bundle_record, gpu_state, verification
from trtkit.benchmarking.records import joined, request_times
from trtkit.benchmarking.report import LlmReport, Ratio, TextCase, TextResult, TextRules
from trtkit.benchmarking.schedules import Schedule
from trtkit.benchmarking.served import Endpoint, ServedText
from trtkit.benchmarking.static_batches import TRANSFORMERS, TransformersServer
from trtkit.benchmarking.text_load import text_load
from trtkit.benchmarking.text_server import EngineServer
from trtkit.benchmarking.timing import STEADY_DRIFT, drift_of
from trtkit.benchmarking.workload import Work, check_fits
from trtkit.bundle.bundle import is_bundle, open_bundle
from trtkit.engine.decoders import llm_options
from trtkit.errors import BenchError
from trtkit.jobs.events import Phase, Progress
from trtkit.runtime.decoder import engine_device
from trtkit.runtime.llm import LLM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.benchmarking.records import Record
    from trtkit.benchmarking.report import Provenance
    from trtkit.benchmarking.request import BenchRequest
    from trtkit.benchmarking.text_load import TextLoad
    from trtkit.benchmarking.text_server import Served, TextServer
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner

COMPARED = ("request_latency", "time_to_first_token", "inter_token_latency")
_WARMUP_TOKENS = 4


def bench_llm(bundle: Bundle, request: BenchRequest, about: Provenance, runner: Runner) -> LlmReport:
    """Return the report of a run. about: when and how it was started. Raises BenchError, GenerationError."""
    load = text_load(bundle, request)
    verified = verification(bundle, is_waived=request.is_waived)
    check_fits(load.work(0), llm_options(bundle.manifest.config).max_sequence_length, str(bundle.path))
    graphs = _graphs(request)
    runner.report(Phase("load"))
    servers: list[TextServer] = [_measured(bundle, request)]
    servers += [_rival(name, bundle, request, load) for name in request.rivals]
    cases = [measure_case(servers, index, load, runner) for index in range(len(load.schedules))]
    state = gpu_state()
    ceiling, complete = with_ceilings(bundle, servers, cases, runner)
    return LlmReport(
        provenance=about,
        name=bundle.manifest.name,
        computes=servers[0].computes,
        bundle=bundle_record(bundle, verified),
        inputs=load.description,
        rules=TextRules(load.rounds, _WARMUP_TOKENS),
        objectives=dict(load.objectives),
        cuda_graphs=graphs,
        ceiling=ceiling,
        gpu_state_after=state,
        cases=complete,
    )


def measure_case(servers: Sequence[TextServer], index: int, load: TextLoad, runner: Runner) -> TextCase:
    """Give every server the load of case `index`, round by round in turn; return figures, requests and ratios."""
    schedule = load.schedules[index]
    done, total = (cases * load.rounds * len(servers) for cases in (index, len(load.schedules)))
    for server in servers:
        runner.report(Progress("measure", done, total, f"{schedule.name}, warm up {server.name}"))
        _warm_up(server, load.work(-1), schedule)
    served: dict[str, list[Served]] = {server.name: [] for server in servers}
    for number in range(load.rounds):
        work, first = load.work(index * load.rounds + number), number % len(servers)
        for server in [*servers[first:], *servers[:first]]:
            detail = f"{schedule.name}, round {number + 1} of {load.rounds}, {server.name}"
            runner.report(Progress("measure", done, total, detail))
            served[server.name].append(server.serve(work, schedule))
            done += 1
    ours = served[servers[0].name]
    results = [_result(server, ours, served[server.name], load.objectives) for server in servers]
    ratios = [ratio for server in servers[1:] for ratio in _ratios(servers[0], ours, server, served[server.name])]
    return TextCase(name=schedule.name, concurrency=schedule.concurrency, results=tuple(results), ratios=tuple(ratios))


def load_result(server: TextServer, records: Sequence[Record], objectives: Mapping[str, float]) -> TextResult:
    """Return one server's figures, samples and requests."""
    done = [record for record in records if not record.error]
    latencies = [record.latency_s for record in sorted(done, key=lambda record: record.due_s)]
    drift = drift_of(latencies) if latencies else 0.0
    return TextResult(
        contender=server.name,
        computes=server.computes,
        metrics=load_metrics(records, objectives),
        samples=_samples(done),
        requests=tuple(map(request_times, records)),
        reused_tokens=sum(record.reused_tokens for record in done),
        restored_tokens=sum(record.restored_tokens for record in done),
        drift=drift,
        is_steady=abs(drift) <= STEADY_DRIFT,
    )


def _measured(bundle: Bundle, request: BenchRequest) -> TextServer:
    """Return the bundle in this process, or as a server has it."""
    if request.server is None:
        return _own(bundle, request)
    return ServedText(Endpoint(request.server.url, request.server.name or bundle.manifest.name))


def _graphs(request: BenchRequest) -> str:
    """Return in words whether CUDA graphs are used; see `graphs_text`."""
    if request.server is not None:
        return "as the server has it"
    has_engine = engine_device(request.options.runtime) is not None
    return graphs_text(request.has_cuda_graphs, has_engine=has_engine, are_usual=True)


def _own(bundle: Bundle, request: BenchRequest, name: str = "trtkit") -> EngineServer:
    options = request.options
    if request.has_cuda_graphs is not None:
        options = replace(options, has_cuda_graphs=request.has_cuda_graphs)
    return EngineServer(LLM(bundle, **vars(options)), bundle.manifest.config.precision, name)


def _rival(name: str, bundle: Bundle, request: BenchRequest, load: TextLoad) -> TextServer:
    if name == TRANSFORMERS and any(schedule.concurrency is None for schedule in load.schedules):
        what = "transformers runs fixed batches; it cannot serve requests as they arrive"
        raise BenchError(what, f"--compare {TRANSFORMERS}", "use --concurrency instead")
    if name == TRANSFORMERS:
        return TransformersServer(bundle.manifest.config)
    if not is_bundle(Path(name)):
        fix = f"use {TRANSFORMERS}, or the folder of another language model's bundle"
        raise BenchError(f"cannot compare a language model with `{name}`", "--compare", fix)
    other = open_bundle(name)
    verification(other, is_waived=request.is_waived)
    if other.manifest.interface != "tokens":
        raise BenchError("the bundle does not hold a language model", f"--compare {name}", "compare models of one kind")
    check_fits(load.work(0), llm_options(other.manifest.config).max_sequence_length, name)
    return _own(other, request, name)


def _warm_up(server: TextServer, work: Sequence[Work], schedule: Schedule) -> None:
    """Answer a few requests shortly, at the case's concurrency."""
    level = max(2, schedule.concurrency or 1)
    short = [Work(each.prompt_ids, min(each.output_tokens, _WARMUP_TOKENS)) for each in work[:level]]
    server.serve(short, Schedule("warm up", level))


def _result(
    server: TextServer, ours: Sequence[Served], served: Sequence[Served], objectives: Mapping[str, float]
) -> TextResult:
    """Return a server's figures. ours: what the first contender served."""
    result = load_result(server, joined([each.records for each in served]), objectives)
    return replace(result, same_tokens=_same_tokens(ours, served))


def _samples(done: Sequence[Record]) -> dict[str, tuple[float, ...]]:
    """Return what a comparison draws from, in ms: one value a request that succeeded."""
    samples_s: dict[str, list[float | None]] = {
        "request_latency": [record.latency_s for record in done],
        "time_to_first_token": [record.time_to_first_token_s for record in done],
        "inter_token_latency": [record.time_per_output_token_s for record in done],
    }
    return {name: tuple(value * 1e3 for value in each if value is not None) for name, each in samples_s.items()}


def _same_tokens(ours: Sequence[Served], theirs: Sequence[Served]) -> float | None:
    """Return the share of tokens that are those of the first contender; None if they are not known."""
    pairs = [
        (mine, other)
        for our, their in zip(ours, theirs, strict=True)
        for mine, other in zip(our.tokens, their.tokens, strict=False)
    ]
    same = [a == b for mine, other in pairs for a, b in zip(mine, other, strict=False)]
    return sum(same) / len(same) if same else None


def _ratios(first: TextServer, ours: Sequence[Served], other: TextServer, theirs: Sequence[Served]) -> list[Ratio]:
    """Return how much longer the first takes, metric by metric; requests are pairs if all succeeded."""
    mine, its = (_samples(joined([each.records for each in served])) for served in (ours, theirs))
    ratios = []
    for metric in COMPARED:
        if not mine[metric] or not its[metric]:
            continue
        interval = ratio_of_medians(mine[metric], its[metric], is_paired=len(mine[metric]) == len(its[metric]))
        ratios.append(Ratio(numerator=first.name, denominator=other.name, metric=metric, **vars(interval)))
    return ratios
