"""`trtkit simulate`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.model_options import model_argument, model_options
from trtkit.cli.options import check_page, json_option, page_origin, quiet_option
from trtkit.cli.simulate_options import simulate_options
from trtkit.files import write_output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.jobs.runner import Runner
    from trtkit.simulation.fleet import FleetOptions
    from trtkit.simulation.report import Simulation
    from trtkit.simulation.requests import Traffic
    from trtkit.simulation.summary import Summary

EPILOG = """\b
Examples:
  trtkit simulate llama-3.1-8b --gpu h200 --rate 20
  trtkit simulate llama-3.1-8b --gpu h200 --rate 20 --kv paged --html sim.html
  trtkit simulate llama --gpu l4 --rate 9 --arrivals bursty --schedule mlfq
  trtkit simulate bundles/llama --gpu l4 --trace requests.jsonl --replicas 4
  trtkit simulate llama-3.1-8b --gpu h100 --rate 50 --goodput ttft:500 \\
      --goodput tpot:50 --find-gpus --price-per-hour 2.5
  trtkit simulate --times measured.json --slots 8 --rate 0.5 --json

\b
A line of a trace: {"arrival_s": 0.5, "input_tokens": 9, "output_tokens": 4};
`hash_ids`, `priority`, `user` and `deadline_s` are optional. Traces that
`trtkit bench` reads work too. Needs no GPU, and no weights.
Exit codes: 0 done, 1 failed, 2 wrong usage, traffic, model, GPU or times."""


@click.command(epilog=EPILOG)
@model_argument(required=False)
@simulate_options
@model_options
@json_option
@quiet_option
def command(path: str | None, as_json: bool, **options: Any) -> None:
    """Simulate serving a language model: latency, goodput, GPUs and cost.

    The engine's own queue, schedules, slots and chunks run on a virtual clock. What a step takes comes from the
    roofline of MODEL on --gpu, which is a lower bound unless --efficiency says which share of it engines reach, or from
    measured coefficients (--times).
    """
    from trtkit.cli.progress import show_progress

    if (path is None) == (options["times"] is None):
        raise click.UsageError("give either MODEL with --gpu, or --times FILE")
    if path is not None and options["gpu"] is None:
        raise click.UsageError("MODEL needs --gpu NAME; `trtkit plan --list-gpus` lists them")
    if (options["rate"] is None) == (options["trace"] is None):
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


def _simulate(path: str | None, options: Mapping[str, Any], runner: Runner) -> Simulation:
    """Find the traffic and the machine, then simulate, once or for several numbers of replicas."""
    from trtkit.benchmarking.metrics import parse_objectives
    from trtkit.cli.simulate_options import read_fleet, read_traffic_options
    from trtkit.simulation.report import Simulation
    from trtkit.simulation.search import find_replicas

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
    """Return what simulates a number of replicas. price: of an hour. runner: is told the progress."""
    from trtkit.jobs.events import Progress
    from trtkit.simulation.fleet import simulate
    from trtkit.simulation.summary import summarize

    def run(replicas: int) -> Summary:
        sized_fleet = replace(fleet, replicas=replicas)
        name = f"simulate {sized_fleet.gpus} GPU{'s' if sized_fleet.gpus > 1 else ''}"
        record = simulate(traffic, sized_fleet, lambda done: runner.report(Progress(name, done, len(traffic))))
        return summarize(traffic, record, sized_fleet, objectives, price)

    return run
