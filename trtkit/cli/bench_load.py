"""From the options of `trtkit bench` to its request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.bench_options import LOAD_NAMES, SERVER_NAMES, VISION_NAMES, refuse_options
from trtkit.cli.serving_options import split_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.benchmarking.request import BenchRequest, Load
    from trtkit.bundle.bundle import Bundle

_LOAD_FIELDS = (
    "concurrency", "request_rate", "arrivals", "trace", "speed", "requests", "rounds", "prompts", "seed",
    "input_tokens", "output_tokens", "input_deviation", "output_deviation", "shared_tokens", "prefixes",
)  # fmt: skip


def bench_request(bundle: Bundle, options: Mapping[str, Any], *, trusts_source: bool) -> BenchRequest:
    """Return what the options request. Raises BenchError or UsageError for what cannot be measured."""
    from trtkit.benchmarking.metrics import parse_objectives
    from trtkit.benchmarking.request import BenchRequest, Load, ServedModel
    from trtkit.benchmarking.timing import Rules
    from trtkit.serving_options import ServingOptions

    _refuse_meaningless(bundle, options)
    fields = {name: options[name] for name in _LOAD_FIELDS}
    load = Load(**fields, goodput=parse_objectives(options["objectives"]))
    if options["weight_budget_gib"] is not None and options["has_cuda_graphs"]:
        raise click.UsageError("--cuda-graphs cannot be combined with --weight-budget: graphs hold no streamed weights")
    _refuse_contradictions(bundle, load, has_rivals=bool(options["rivals"]))
    return BenchRequest(
        rivals=options["rivals"],
        batches=options["batches"],
        rules=Rules(
            warmup_runs=options["warmup"],
            min_runs=options["min_runs"],
            min_s=options["min_seconds"],
            max_s=options["max_seconds"],
        ),
        load=load,
        options=ServingOptions(**split_options(options)[0]),
        has_cuda_graphs=options["has_cuda_graphs"] if options["weight_budget_gib"] is None else False,
        server=ServedModel(options["url"], options["model"]) if options["url"] else None,
        is_waived=options["unverified"],
        trusts_source=trusts_source,
    )


def _refuse_meaningless(bundle: Bundle, options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that mean nothing for the bundle."""
    if bundle.manifest.interface == "tokens":
        refuse_options(VISION_NAMES, "does not apply to language models")
        return
    refuse_options(LOAD_NAMES, "applies to language models only")
    if not options["url"]:
        refuse_options(SERVER_NAMES, "applies to language models, or to a server (--url)")


def _refuse_contradictions(bundle: Bundle, load: Load, *, has_rivals: bool) -> None:
    """Raise UsageError for options that exclude each other."""
    if len(load.arrival_fields) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in load.arrival_fields[:2])
        raise click.UsageError(f"{first} and {second} cannot be combined")
    if load.trace is not None and load.prompts is not None:
        raise click.UsageError("--prompts cannot be combined with --trace, which sets the prompt lengths")
    if bundle.manifest.interface == "arrays" and load.arrival_fields and has_rivals:
        raise click.UsageError("--compare cannot be combined with --url")
