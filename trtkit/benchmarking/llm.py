"""Benchmarks of language models: cases of a load, alternating contenders, metrics with AIPerf's names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.benchmarking.contenders import graphs_text
from trtkit.benchmarking.llm_ceiling import with_ceilings
from trtkit.benchmarking.metrics import joined, load_metrics, named_objectives, request_times
from trtkit.benchmarking.provenance import bundle_record, gpu_state, verification
from trtkit.benchmarking.report import LlmReport, Ratio, TextCase, TextResult, TextRules
from trtkit.benchmarking.schedules import Schedule, schedules_of
from trtkit.benchmarking.served import Endpoint, ServedText
from trtkit.benchmarking.static_batches import TRANSFORMERS, TransformersServer
from trtkit.benchmarking.statistics import ratio_of_medians
from trtkit.benchmarking.text_server import EngineServer
from trtkit.benchmarking.timing import STEADY_DRIFT, drift_of
from trtkit.benchmarking.workload import (
    Work,
    check_fits,
    drawn_tokens,
    read_trace,
    round_seed,
    synthetic_work,
    traced_work,
)
from trtkit.builder.decoders import llm_options
from trtkit.bundle.bundle import is_bundle, open_bundle
from trtkit.errors import BenchError
from trtkit.jobs.events import Phase, Progress
from trtkit.llm import LLM, prepare_prompts, read_prompts, read_text_bundle
from trtkit.llm.execution import engine_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.benchmarking.metrics import RequestRecord
    from trtkit.benchmarking.report import Provenance
    from trtkit.benchmarking.request import BenchRequest, Load
    from trtkit.benchmarking.text_server import Served, TextServer
    from trtkit.benchmarking.workload import TraceRow
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner

    MakeWork = Callable[[int], Sequence[Work]]


COMPARED = ("request_latency", "time_to_first_token", "inter_token_latency")
_WARMUP_TOKENS = 4


def bench_llm(bundle: Bundle, request: BenchRequest, about: Provenance, runner: Runner) -> LlmReport:
    """Return the report of a run. about: time and command of its start. Raises BenchError, GenerationError."""
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
    """Apply the load of case `index` to every server, alternating by round; return figures, requests and ratios."""
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


def load_result(server: TextServer, records: Sequence[RequestRecord], objectives: Mapping[str, float]) -> TextResult:
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
    if request.server is None:
        return _own(bundle, request)
    return ServedText(Endpoint(request.server.url, request.server.name or bundle.manifest.name))


def _graphs(request: BenchRequest) -> str:
    """Describe whether CUDA graphs are used; see `graphs_text`."""
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
    """Answer a few requests briefly, at the case's concurrency."""
    level = max(2, schedule.concurrency or 1)
    short = [Work(item.prompt_ids, min(item.output_tokens, _WARMUP_TOKENS)) for item in work[:level]]
    server.serve(short, Schedule("warm up", level))


def _result(
    server: TextServer, ours: Sequence[Served], served: Sequence[Served], objectives: Mapping[str, float]
) -> TextResult:
    """Return a server's figures. ours: results of the first contender."""
    result = load_result(server, joined([part.records for part in served]), objectives)
    return replace(result, same_tokens=_same_tokens(ours, served))


def _samples(done: Sequence[RequestRecord]) -> dict[str, tuple[float, ...]]:
    """Return the samples to compare, in ms: one value per successful request."""
    samples_s: dict[str, list[float | None]] = {
        "request_latency": [record.latency_s for record in done],
        "time_to_first_token": [record.time_to_first_token_s for record in done],
        "inter_token_latency": [record.time_per_output_token_s for record in done],
    }
    return {name: tuple(value * 1e3 for value in values if value is not None) for name, values in samples_s.items()}


def _same_tokens(ours: Sequence[Served], theirs: Sequence[Served]) -> float | None:
    """Return the share of tokens equal to the first contender's; None if they are unknown."""
    pairs = [
        (mine, other)
        for our, their in zip(ours, theirs, strict=True)
        for mine, other in zip(our.tokens, their.tokens, strict=False)
    ]
    same = [a == b for mine, other in pairs for a, b in zip(mine, other, strict=False)]
    return sum(same) / len(same) if same else None


def _ratios(first: TextServer, ours: Sequence[Served], other: TextServer, theirs: Sequence[Served]) -> list[Ratio]:
    """Return how much longer the first contender takes, by metric; requests are paired if all succeeded."""
    mine, its = (_samples(joined([part.records for part in served])) for served in (ours, theirs))
    ratios = []
    for metric in COMPARED:
        if not mine[metric] or not its[metric]:
            continue
        interval = ratio_of_medians(mine[metric], its[metric], is_paired=len(mine[metric]) == len(its[metric]))
        ratios.append(Ratio(numerator=first.name, denominator=other.name, metric=metric, **vars(interval)))
    return ratios


@dataclass(frozen=True)
class TextLoad:
    """A load that is ready to be sent.

    schedules: one per case. work: a round's requests, by its number: every round has different prompts, since a cache
    may hold the previous round's; the warm-up's number is -1. description: of the requests. objectives: in ms by
    metric.
    """

    schedules: Sequence[Schedule]
    work: MakeWork
    description: str
    rounds: int
    objectives: Mapping[str, float]


def text_load(bundle: Bundle, request: BenchRequest) -> TextLoad:
    """Return the load of a request. Raises BenchError, PromptsError for a file that cannot be used."""
    load = request.load
    rows = [] if load.trace is None else read_trace(load.trace, load.requests)
    vocab_size = drawn_tokens(bundle.manifest)
    work: MakeWork
    if rows:
        count, description = len(rows), f"{len(rows)} requests of {load.trace}, tokens made up"
        work = partial(_traced, rows, vocab_size, load.seed)
    elif load.prompts is not None:
        prompts = _read_work(bundle, load.prompts, load)
        count, description = len(prompts), f"{len(prompts)} prompts of {load.prompts}"
        work = partial(_same_each_round, prompts)
    else:
        count, description = load.count, _description(load)
        work = partial(_synthetic, load, vocab_size)
    rounds = load.rounds or (3 if request.rivals else 1)
    return TextLoad(schedules_of(load, count, rows), work, description, rounds, named_objectives(load.goodput))


def _description(load: Load) -> str:
    description = f"{load.count} made-up prompts of {load.input_tokens} tokens, {load.output_tokens} to answer"
    if not load.shared_tokens:
        return description
    return f"{description}, {load.shared_tokens} shared of {load.prefixes} beginnings"


def _synthetic(load: Load, vocab_size: int, number: int) -> Sequence[Work]:
    return synthetic_work(load, load.count, vocab_size, round_seed(load.seed, number))


def _traced(rows: Sequence[TraceRow], vocab_size: int, seed: int, number: int) -> Sequence[Work]:
    return traced_work(rows, vocab_size, round_seed(seed, number))


def _read_work(bundle: Bundle, file: str, load: Load) -> list[Work]:
    """Return the prompts of a file, repeated or cut to the number of requests; a line may set `max_tokens`."""
    lines = read_prompts(file)
    prompts = prepare_prompts(lines, read_text_bundle(bundle), {"max_tokens": load.output_tokens})
    if any(prompt.read.images for prompt in prompts):
        raise BenchError("prompts with images cannot be measured", file, "remove their `images`")
    work = [Work(tuple(prompt.read.ids), prompt.settings.params.max_tokens) for prompt in prompts]
    return [work[index % len(work)] for index in range(load.requests or len(work))]


def _same_each_round(work: Sequence[Work], _number: int) -> Sequence[Work]:
    return work
