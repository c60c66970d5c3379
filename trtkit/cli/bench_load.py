"""From the options of `trtkit bench` to the load of a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.benchmarking.llm import LlmRequest, MakeWork
    from trtkit.benchmarking.schedules import Schedule
    from trtkit.benchmarking.traces import TraceRow
    from trtkit.benchmarking.workload import Work
    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.llm import TextBundle

DEFAULT_REQUESTS = 16


def llm_request(bundle: Bundle, options: Mapping[str, Any], is_waived: bool) -> LlmRequest:
    """Return the load that options ask for. Raises BenchError, PromptsError or UsageError for what cannot be."""
    from trtkit.benchmarking.llm import LlmRequest
    from trtkit.benchmarking.metrics import parse_objectives
    from trtkit.benchmarking.workload import drawn_tokens
    from trtkit.cli.runtime_options import RUNTIME_NAMES
    from trtkit.runtime.llm import read_text_bundle

    _check(options)
    model, vocab_size = read_text_bundle(bundle), drawn_tokens(bundle.manifest)
    rows = _trace(options)
    make, said, count = _work(options, model, vocab_size, rows)
    return LlmRequest(
        _schedules(options, rows, count),
        make,
        said,
        options["rounds"] or (3 if options["rivals"] else 1),
        parse_objectives(options["objectives"]),
        options["rivals"],
        is_waived,
        {name: options[name] for name in RUNTIME_NAMES},
        (options["url"], options["model"]) if options["url"] else None,
        options["has_cuda_graphs"],
    )


def server_load(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the load on a served network: its schedules, requests and objectives; none where none was asked for."""
    from trtkit.benchmarking.metrics import parse_objectives

    count = options["requests"] or DEFAULT_REQUESTS
    has_load = options["concurrency"] is not None or options["request_rate"] is not None
    _check(options)
    if has_load and options["rivals"]:
        raise click.UsageError("a load on a server has nobody beside it: leave out --compare")
    schedules = tuple(_schedules(options, (), count)) if has_load else ()
    return {"schedules": schedules, "requests": count, "objectives": parse_objectives(options["objectives"])}


def _check(options: Mapping[str, Any]) -> None:
    loads = [name for name in ("concurrency", "request_rate", "trace") if options[name] is not None]
    if len(loads) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in loads[:2])
        raise click.UsageError(f"{first} and {second} are two loads: give one")
    if options["trace"] is not None and options["prompts"] is not None:
        raise click.UsageError("a trace says how long its prompts are: leave out --prompts")


def _trace(options: Mapping[str, Any]) -> list[TraceRow]:
    from trtkit.benchmarking.traces import read_trace

    return [] if options["trace"] is None else read_trace(options["trace"], options["requests"])


def _work(
    options: Mapping[str, Any], model: TextBundle, vocab_size: int, rows: Sequence[TraceRow]
) -> tuple[MakeWork, str, int]:
    """Return what makes a round's requests, its description, and how many they are."""
    from trtkit.benchmarking.workload import Lengths, round_seed, synthetic_rounds, traced_work

    seed = options["seed"]
    if rows:
        said = f"{len(rows)} requests of {options['trace']}, tokens made up"
        return (lambda number: traced_work(rows, vocab_size, round_seed(seed, number))), said, len(rows)
    if options["prompts"] is not None:
        work = _file_work(options, model)
        return (lambda _number: work), f"{len(work)} prompts of {options['prompts']}", len(work)
    names = ("input_tokens", "output_tokens", "input_deviation", "output_deviation", "shared_tokens", "prefixes")
    lengths, count = Lengths(*(options[name] for name in names)), options["requests"] or DEFAULT_REQUESTS
    return *synthetic_rounds(lengths, count, vocab_size, seed), count


def _file_work(options: Mapping[str, Any], model: TextBundle) -> list[Work]:
    """Return the prompts of a file, repeated or cut to the number of requests; a line may have `max_tokens`."""
    from trtkit.benchmarking.workload import Work
    from trtkit.errors import BenchError
    from trtkit.runtime.llm import prepare_prompts, read_prompts

    lines = read_prompts(options["prompts"])
    prompts = prepare_prompts(lines, model, {"max_tokens": options["output_tokens"]})
    if any(prompt.read.images for prompt in prompts):
        raise BenchError("prompts with images cannot be measured", options["prompts"], "leave their `images` out")
    work = [Work(tuple(prompt.read.ids), prompt.settings.params.max_tokens) for prompt in prompts]
    count = options["requests"] or len(work)
    return [work[index % len(work)] for index in range(count)]


def _schedules(options: Mapping[str, Any], rows: Sequence[TraceRow], count: int) -> list[Schedule]:
    from trtkit.benchmarking.schedules import concurrency_schedules, rate_schedules, trace_schedule

    if rows:
        return [trace_schedule(rows, options["speed"])]
    if options["request_rate"] is not None:
        return rate_schedules(options["request_rate"], count, options["arrivals"], options["seed"])
    return concurrency_schedules(options["concurrency"] or (1,))
