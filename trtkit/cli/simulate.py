"""`trtkit simulate`."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli import completions
from trtkit.cli.model_options import model_argument, override_options
from trtkit.cli.options import check_page, json_option, page_origin, quiet_option
from trtkit.files import write_output
from trtkit.serving_options import CACHE_PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.jobs.runner import Runner
    from trtkit.planning.question import PlanningQuestion
    from trtkit.planning.source import PlannedModel
    from trtkit.simulation.fleet import FleetOptions
    from trtkit.simulation.machine import Caches, Reads
    from trtkit.simulation.replica_options import ReplicaOptions
    from trtkit.simulation.report import Simulation
    from trtkit.simulation.requests import Traffic
    from trtkit.simulation.summary import Summary

    Command = Callable[..., None]
    Options = Mapping[str, Any]


_FILE = click.Path(path_type=Path, dir_okay=False)
_COUNT, _AMOUNT, _ABOVE = click.IntRange(1), click.FloatRange(0), click.FloatRange(0, min_open=True)
_GOODPUT = "Latency objective: ttft, tpot or e2e in ms; repeatable."
_OPTIONS = (
    click.option("--gpu", metavar="NAME", help="GPU of a replica.", shell_complete=completions.gpus),
    click.option("--times", type=_FILE, metavar="FILE", help="JSON of measured step times, instead of MODEL."),
    click.option("--efficiency", type=click.FloatRange(0, 1, min_open=True), default=1.0, metavar="X",
                 help="Share of the roofline that steps reach.  [default: 1]"),
    click.option("--overhead-ms", type=_AMOUNT, default=0.0, metavar="X", help="Overhead per call.  [default: 0]"),
    click.option("--rate", type=_ABOVE, metavar="X", help="Requests per second."),
    click.option("--arrivals", type=click.Choice(["poisson", "bursty", "constant"]), default="poisson",
                 help="Pattern of arrivals.  [default: poisson]"),
    click.option("--cv", type=_ABOVE, default=4.0, metavar="X",
                 help="Coefficient of variation of bursty gaps.  [default: 4]"),
    click.option("--requests", type=_COUNT, metavar="N", help="Number of requests.  [default: 1000, or the trace's]"),
    click.option("--input-len", type=_COUNT, default=512, metavar="N", help="Mean prompt tokens.  [default: 512]"),
    click.option("--output-len", type=_COUNT, default=128, metavar="N", help="Mean output tokens.  [default: 128]"),
    click.option("--input-deviation", type=_AMOUNT, default=0.0, metavar="X", help="Standard deviation of prompts."),
    click.option("--output-deviation", type=_AMOUNT, default=0.0, metavar="X", help="Standard deviation of answers."),
    click.option("--shared-tokens", type=click.IntRange(0), default=0, metavar="N",
                 help="Length of the prefix that prompts share."),
    click.option("--prefixes", type=_COUNT, default=1, metavar="N", help="Number of different shared prefixes."),
    click.option("--trace", type=_FILE, metavar="FILE", help="Requests from a JSONL file or an Azure CSV."),
    click.option("--speed", type=_ABOVE, default=1.0, metavar="X", help="Speed-up of the trace."),
    click.option("--seed", type=int, default=0, metavar="N", help="Seed of the traffic.  [default: 0]"),
    click.option("--replicas", type=_COUNT, default=1, metavar="N",
                 help="Engines, each on one GPU or those of `parallel`.  [default: 1]"),
    click.option("--prefill-replicas", type=click.IntRange(0), default=0, metavar="N",
                 help="More engines, which only compute prompts."),
    click.option("--router", type=click.Choice(["round-robin", "least-loaded", "prefix"]), default="least-loaded",
                 help="Where requests go.  [default: least-loaded]"),
    click.option("--schedule", type=click.Choice(["fcfs", "priority", "mlfq"]), default="priority",
                 help="Which request runs next.  [default: priority]"),
    click.option("--slots", type=_COUNT, metavar="N", help="Concurrent sequences of a replica.  [default: what fits]"),
    click.option("--max-length", type=click.IntRange(2), metavar="N",
                 help="Tokens of a slot.  [default: the longest request]"),
    click.option("--prefill-budget", type=_COUNT, metavar="N", help="New tokens per step.  [default: 512]"),
    click.option("--batching", type=click.Choice(["packed", "separate"]),
                 help="Decode and prefill share a call, or have one each.  [default: MODEL's config]"),
    click.option("--kv", type=click.Choice(["linear", "paged", "paged-in-place"]),
                 help="Caches: a slot per sequence, or pages, copied by each step or not.  [default: MODEL's config]"),
    click.option("--page-tokens", type=_COUNT, metavar="N",
                 help="Tokens per page.  [default: MODEL's config, or 16]"),
    click.option("--pages", type=_COUNT, metavar="N", help="Pages of a replica.  [default: what fits]"),
    click.option("--host-cache-gib", type=_AMOUNT, metavar="GIB",
                 help="Host memory of a replica for caches that its GPU cannot hold.  [default: 2]"),
    click.option("--host-gb-per-s", type=_ABOVE, default=50.0, metavar="X",
                 help="Bandwidth to the host and to other replicas.  [default: 50]"),
    click.option("--offload", type=click.Choice(CACHE_PLACES),
                 help="Run MODEL's stages in turn on one GPU, with caches there."),
    click.option("--micro-batch", type=_COUNT, metavar="N",
                 help="Sequences that stages in turn compute together.  [default: of the best block]"),
    click.option("--host-memory", type=_ABOVE, metavar="GB", help="Host memory for --offload."),
    click.option("--disk", metavar="READ[/WRITE]", help="Disk for --offload, in GB/s."),
    click.option("--goodput", "objectives", multiple=True, metavar="NAME:MS", help=_GOODPUT),
    click.option("--attainment", type=click.FloatRange(0, 1, min_open=True), default=0.99, metavar="X",
                 help="Share of requests within the objectives, for --find-gpus.  [default: 0.99]"),
    click.option("--find-gpus", is_flag=True, help="Find the fewest replicas that meet the objectives."),
    click.option("--price-per-hour", type=_ABOVE, metavar="X", help="Price per GPU hour."),
    click.option("--html", type=_FILE, metavar="FILE", help="Write an HTML report."),
)  # fmt: skip
_HOST_GIB = 2.0  # the default of EngineOptions.host_cache_bytes
_LONGEST = 1 << 20
_MAX_PREFILL, _PAGE_TOKENS = 512, 16


def simulate_options(command: Command) -> Command:
    """Add the options of a simulation to a command."""
    return functools.reduce(lambda inner, option: option(inner), reversed(_OPTIONS), command)


def read_traffic_options(options: Options) -> Traffic:
    """Return the requests. Raises SimulationError, BenchError."""
    from trtkit.simulation.traffic import TrafficOptions, random_traffic, read_traffic

    if options["trace"] is not None:
        return read_traffic(options["trace"], options["speed"], options["requests"])
    law = TrafficOptions(
        math.inf if options["rate"] is None else options["rate"],  # all at once
        options["requests"] or 1000,
        options["arrivals"],
        options["cv"],
        options["input_len"],
        options["output_len"],
        options["input_deviation"],
        options["output_deviation"],
        options["shared_tokens"],
        options["prefixes"],
        options["seed"],
    )
    return random_traffic(law, options["max_length"] or _LONGEST)


def read_fleet(
    path: str | None, traffic: Traffic, options: Options, runner: Runner
) -> tuple[FleetOptions, tuple[str, ...]]:
    """Return the replicas and the assumptions about them. Raises TrtkitError."""
    from trtkit.simulation.fleet import FleetOptions

    longest = options["max_length"] or int((traffic.input_tokens + traffic.output_tokens).max())
    if path is None:
        replica, notes = _measured(longest, options)
    elif options["offload"] is not None:
        replica, notes = _in_turn(path, (int(traffic.input_tokens.max()), longest), options, runner)
    else:
        replica, notes = _planned(path, longest, options, runner)
    replica = _with_blocks(replica, traffic)
    copy_s = replica.times.copy_s_per_token
    return FleetOptions(replica, options["replicas"], options["router"], options["prefill_replicas"], copy_s), notes


def _measured(longest: int, options: Options) -> tuple[ReplicaOptions, tuple[str, ...]]:
    from trtkit.llm.scheduler import ScheduleOptions
    from trtkit.network.input_spec import TOKEN_TILE
    from trtkit.simulation.replica_options import ReplicaOptions
    from trtkit.simulation.times import read_times

    slots = options["slots"] or 8
    page_tokens = options["page_tokens"] or _PAGE_TOKENS
    pages = options["pages"] or -(-slots * longest // page_tokens)
    replica = ReplicaOptions(
        read_times(options["times"]),
        slots,
        longest,
        budget=options["prefill_budget"],
        pages=None if options["kv"] in (None, "linear") else pages,
        page_tokens=page_tokens,
        host_tokens=_LONGEST,
        schedule=ScheduleOptions(options["schedule"]),
        is_packed=options["batching"] == "packed",
        token_tile=TOKEN_TILE,
        copies_in_background=True,
    )
    return replica, (f"step times: {options['times']}", f"the host has room for {_LONGEST:,} tokens")


def _planned(path: str, longest: int, options: Options, runner: Runner) -> tuple[ReplicaOptions, tuple[str, ...]]:
    """Return replicas that run a model on a GPU, with step times from its roofline."""
    from trtkit.builder.decoders import llm_options
    from trtkit.errors import SimulationError
    from trtkit.llm.scheduler import ScheduleOptions
    from trtkit.models.parallel import grid_of
    from trtkit.network.input_spec import TOKEN_TILE
    from trtkit.planning.gpus import find_gpus
    from trtkit.planning.plan import PlanRequest, llm_question, packed_room
    from trtkit.planning.source import find_model
    from trtkit.simulation.machine import MachineOptions, check_grid_is_simulated, machine_of
    from trtkit.simulation.replica_options import ReplicaOptions

    (gpu,) = find_gpus([options["gpu"]])
    model = find_model(path, options["overrides"], options["target"])
    if model.fields is None:
        raise SimulationError(f"`{model.name}` is not a language model", path, "simulate a language model")
    check_grid_is_simulated(grid_of(model.config), gpu)
    longest = max(longest, model.max_length)
    question = llm_question(model, PlanRequest([gpu], longest - 1, 1, 1), runner)
    if options["batching"] is not None:
        room = packed_room(llm_options(model.config), question.model)
        question = replace(question, packed=room if options["batching"] == "packed" else None)
    kv, own_page_tokens = _caches(model, question, options["kv"])
    page_tokens = options["page_tokens"] or own_page_tokens
    share, overhead_s = options["efficiency"], options["overhead_ms"] / 1e3
    linear: Reads = "windows" if llm_options(model.config).kv_window == "used" else "slots"
    reads: Reads = linear if kv == "linear" else "windows" if kv == "paged" else "tokens"
    slots, host_bytes_per_s = _slots(model, options["slots"]), 1e9 * options["host_gb_per_s"]
    machine_options = MachineOptions(share, overhead_s, host_bytes_per_s, slots, page_tokens, reads)
    machine = machine_of(question, gpu, machine_options, kv)
    pages = options["pages"] or machine.cache_tokens // page_tokens
    host_gib = _HOST_GIB if options["host_cache_gib"] is None else options["host_cache_gib"]
    replica = ReplicaOptions(
        machine.times,
        machine.slots,
        machine.slot_tokens,
        max(question.work.chunk, options["prefill_budget"] or _MAX_PREFILL),
        options["prefill_budget"],
        None if kv == "linear" else pages,
        page_tokens,
        host_tokens=int(host_gib * (1 << 30)) // machine.token_bytes if machine.token_bytes else 0,
        token_bytes=machine.token_bytes,
        schedule=ScheduleOptions(options["schedule"]),
        gpus=machine.gpus,
        is_packed=question.packed is not None,
        token_tile=TOKEN_TILE,
        copies_in_background=machine.gpus == 1,  # ranks wait for each other
        windows=machine.windows,
    )
    holds = "each with room for the longest" if kv == "linear" else f"{pages} pages of {page_tokens} tokens"
    hardware = gpu.name if machine.gpus == 1 else f"{machine.gpus} {gpu.name}"
    notes = (
        f"{question.model.name} in {question.model.dtype.name} on {hardware}: {machine.slots} sequences of at most "
        f"{machine.slot_tokens} tokens at once, {holds}; the host for {replica.host_tokens:,} tokens",
        f"steps at {share:.0%} of the roofline of published figures" + (", a lower bound" if share == 1 else ""),
    )
    return replica, notes


def _in_turn(
    path: str, lengths: tuple[int, int], options: Options, runner: Runner
) -> tuple[ReplicaOptions, tuple[str, ...]]:
    """Return replicas that run a model's stages in turn. lengths: tokens of the longest prompt and sequence."""
    from trtkit.cli.plan import host_of
    from trtkit.errors import SimulationError
    from trtkit.llm.scheduler import ScheduleOptions
    from trtkit.planning.gpus import find_gpus
    from trtkit.planning.plan import PlanRequest, llm_question
    from trtkit.planning.source import find_model
    from trtkit.simulation.machine import MachineOptions
    from trtkit.simulation.stages import Block, replica_in_turn

    (gpu,) = find_gpus([options["gpu"]])
    model = find_model(path, options["overrides"], options["target"])
    if model.fields is None:
        raise SimulationError(f"`{model.name}` is not a language model", path, "simulate a language model")
    prompt, longest = lengths
    host, block = (
        host_of(options["host_memory"], options["disk"]),
        Block(options["offload"], _slots(model, options["slots"]), options["micro_batch"]),
    )
    question = llm_question(model, PlanRequest([gpu], prompt, max(1, longest - prompt), 1, host=host), runner)
    rates = MachineOptions(options["efficiency"], options["overhead_ms"] / 1e3)
    replica, plan = replica_in_turn(question, gpu, rates, block, ScheduleOptions(options["schedule"]))
    on_disk = f", {plan.disk_share:.0%} of the weights on disk" if plan.disk_share else ""
    notes = (
        f"{question.model.name} in {question.model.dtype.name} on {gpu.name}, {plan.stages} stages in turn: blocks of "
        f"{replica.slots} sequences of at most {replica.slot_tokens} tokens in micro-batches of {plan.micro_batch}, "
        f"caches on {plan.caches}{on_disk}",
        f"stages at {options['efficiency']:.0%} of the roofline of published figures; links and disk at their rates",
    )
    return replica, notes


def _caches(model: PlannedModel, question: PlanningQuestion, kv: Caches | None) -> tuple[Caches, int]:
    """Return the kind of caches and the page size in tokens, from the options or the model's config."""
    from trtkit.builder.decoders import llm_options
    from trtkit.planning.paged import copied_pages

    page_tokens = llm_options(model.config).page_size or _PAGE_TOKENS
    if kv is not None:
        return kv, page_tokens
    pages = copied_pages(model.config, model.backend, question.spec, question.model.cache_format)
    return "linear" if pages is None else "paged" if pages.layers else "paged-in-place", page_tokens


def _slots(model: PlannedModel, slots: int | None) -> int | None:
    """Return the number of slots; None for as many as fit. A bundle was built for a fixed number."""
    from trtkit.builder.decoders import llm_options
    from trtkit.errors import SimulationError

    if model.bundle is None:
        return slots
    most = llm_options(model.config).max_batch_size
    if (slots or 0) > most:
        what = f"{slots} slots: {model.where} was built for {most} sequences at once"
        raise SimulationError(what, "--slots", "use fewer, or build with a larger `llm.max_batch_size`")
    return slots or most


def _with_blocks(replica: ReplicaOptions, traffic: Traffic) -> ReplicaOptions:
    """Share the traffic's blocks between prompts, in whole pages."""
    from trtkit.errors import SimulationError

    if not traffic.hash_ids:
        return replica
    if replica.pages is not None and traffic.block_tokens % replica.page_tokens:
        what = f"{traffic.block_tokens} shared tokens are not whole pages of {replica.page_tokens}"
        raise SimulationError(what, "--page-tokens", "choose a size that divides them")
    return replace(replica, block_tokens=traffic.block_tokens)


EPILOG = """\b
Examples:
  trtkit simulate llama-3.1-8b --gpu h200 --rate 20
  trtkit simulate llama-3.1-8b --gpu h200 --rate 20 --kv paged --html sim.html
  trtkit simulate llama --gpu l4 --rate 9 --arrivals bursty --schedule mlfq
  trtkit simulate bundles/llama --gpu l4 --trace requests.jsonl --replicas 4
  trtkit simulate llama-3.1-8b --gpu h100 --rate 50 --goodput ttft:500 \\
      --goodput tpot:50 --find-gpus --price-per-hour 2.5
  trtkit simulate opt-30b --gpu t4 --offload host --host-memory 208 \\
      --slots 144 --micro-batch 48 --requests 144 --output-len 32
  trtkit simulate --times measured.json --slots 8 --rate 0.5 --json

\b
A line of a trace: {"arrival_s": 0.5, "input_tokens": 9, "output_tokens": 4};
`hash_ids`, `priority`, `user` and `deadline_s` are optional. Traces that
`trtkit bench` reads work too. Needs no GPU, and no weights.
Exit codes: 0 done, 1 failed, 2 wrong usage, traffic, model, GPU or times."""


@click.command(epilog=EPILOG)
@model_argument(required=False)
@simulate_options
@override_options
@json_option
@quiet_option
def command(path: str | None, as_json: bool, **options: Any) -> None:
    """Simulate serving a language model: latency, goodput, GPUs and cost.

    The engine's own queue, schedules, slots and chunks run on a virtual clock. Step times come from the roofline
    of MODEL on --gpu, which is a lower bound unless --efficiency states which share of it engines reach, or from
    measured coefficients (--times).
    """
    from trtkit.cli.progress import show_progress

    if (path is None) == (options["times"] is None):
        raise click.UsageError("give either MODEL with --gpu, or --times FILE")
    if path is not None and options["gpu"] is None:
        raise click.UsageError("MODEL needs --gpu NAME; `trtkit plan --list-gpus` lists them")
    _check_offload(path, options)
    is_at_once = options["offload"] is not None and options["rate"] is options["trace"] is None
    if (options["rate"] is None) == (options["trace"] is None) and not is_at_once:
        raise click.UsageError("give either --rate, or --trace FILE")
    if options["times"] is not None and options["host_cache_gib"] is not None:
        raise click.UsageError("--host-cache-gib needs MODEL; --times does not say what a token's cache takes")
    if options["find_gpus"] and not options["objectives"]:
        raise click.UsageError("--find-gpus needs an objective, such as --goodput ttft:500")
    check_page(options["html"])
    with show_progress(quiet=options["quiet"] or as_json) as runner:
        simulation = _simulate(path, options, runner)
    if options["html"]:
        from trtkit.report.simulation import simulation_page

        write_output(options["html"], simulation_page(simulation, page_origin()))
    if as_json:
        click.echo(json.dumps(simulation.to_json()))
        return
    from trtkit.cli.tables import show
    from trtkit.report.simulation_tables import simulation_tables

    show(simulation_tables(simulation))


_NOT_IN_TURN = ("batching", "kv", "page_tokens", "pages", "host_cache_gib", "prefill_budget")
_OF_OFFLOAD = ("micro_batch", "host_memory", "disk")


def _check_offload(path: str | None, options: Options) -> None:
    """Raise UsageError for options of stages in turn without `--offload`, and for those that they do not take."""
    if options["offload"] is None:
        for name in _OF_OFFLOAD:
            if options[name] is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --offload")
        return
    if path is None or options["host_memory"] is None:
        raise click.UsageError("--offload needs MODEL and --host-memory GB")
    refused = [name for name in _NOT_IN_TURN if options[name] is not None]
    refused += ["prefill_replicas"] if options["prefill_replicas"] else []
    refused += ["shared_tokens"] if options["shared_tokens"] else []
    if refused:
        raise click.UsageError(f"--offload does not take --{refused[0].replace('_', '-')}")


def _simulate(path: str | None, options: Options, runner: Runner) -> Simulation:
    """Find the traffic and the machine, then simulate, once or for several replica counts."""
    from trtkit.benchmarking.metrics import parse_objectives
    from trtkit.simulation.report import Simulation, find_replicas

    objectives = parse_objectives(options["objectives"])
    traffic = read_traffic_options(options)
    fleet, notes = read_fleet(path, traffic, options, runner)
    run = _runner(traffic, fleet, objectives, options["price_per_hour"], runner)
    if not options["find_gpus"]:
        return Simulation(run(fleet.replicas), (), objectives, notes)
    count, tried = find_replicas(run, options["attainment"])
    chosen = next(summary for summary in tried if summary.gpus == replace(fleet, replicas=count).gpus)
    return Simulation(chosen, tuple(tried), objectives, notes)


def _runner(
    traffic: Traffic, fleet: FleetOptions, objectives: Mapping[str, float], price: float | None, runner: Runner
) -> Callable[[int], Summary]:
    """Return a function that simulates a replica count. price: per hour. runner: receives the progress."""
    from trtkit.jobs.events import Progress
    from trtkit.simulation.fleet import simulate
    from trtkit.simulation.summary import summarize

    def run(replicas: int) -> Summary:
        sized_fleet = replace(fleet, replicas=replicas)
        name = f"simulate {sized_fleet.gpus} GPU{'s' if sized_fleet.gpus > 1 else ''}"
        record = simulate(traffic, sized_fleet, lambda done: runner.report(Progress(name, done, len(traffic))))
        return summarize(traffic, record, sized_fleet, objectives, price)

    return run
