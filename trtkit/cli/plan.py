"""`trtkit plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli import completions
from trtkit.cli.model_options import model_argument, override_options
from trtkit.cli.options import check_page, json_option, page_origin, quiet_option
from trtkit.cli.visible import echo
from trtkit.files import write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.question import Host
    from trtkit.planning.report import Report

EPILOG = """\b
Examples:
  trtkit plan llama
  trtkit plan bundles/llama --gpu l4,rtx4090 --concurrency 8
  trtkit plan ~/models/Qwen3-8B --gpu h200 --input-len 2048 --output-len 256
  trtkit plan llama-2-7b --gpu a100-80 --price 1.8 --html plan.html
  trtkit plan llama-3.1-8b --gpu l4,h100 --price l4=0.7 --price h100=2.5
  trtkit plan llama-3.1-8b --gpu l4 --price 0.7 --requests-per-second 20
  trtkit plan efficientnet-lite0 --gpu orin,t4 --concurrency 8
  trtkit plan llama-3.1-8b --gpu l4 --details
  trtkit plan opt-30b --gpu t4 --host-memory 208 --disk 2/1 --details
  trtkit plan --list-gpus

\b
Needs no GPU, and no weights for language models.
Exit codes: 0 done, 1 failed, 2 wrong usage, config, GPU or length."""


@click.command(epilog=EPILOG)
@model_argument(required=False)
@click.option(
    "--gpu",
    "gpus",
    metavar="NAME,...",
    help="GPUs to plan for.  [default: all known GPUs]",
    shell_complete=completions.gpus,
)
@click.option("--input-len", type=click.IntRange(1), metavar="N", help="Prompt tokens.  [default: 512]")
@click.option("--output-len", type=click.IntRange(1), metavar="N", help="Output tokens.  [default: 128]")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Concurrent requests, or images per batch.")
@click.option("--price", "prices", multiple=True, metavar="[NAME=]X", help="Price per GPU hour.")
@click.option(
    "--requests-per-second",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Estimate the fewest GPUs for this load, and their monthly cost.",
)
@click.option(
    "--host-memory",
    type=click.FloatRange(0, min_open=True),
    metavar="GB",
    help="Also plan offloading, to this much host memory.",
)
@click.option("--disk", metavar="READ[/WRITE]", help="Disk bandwidth for what exceeds host memory, in GB/s.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write an HTML report.")
@click.option("--details", is_flag=True, help="Show layers, batch sizes, formats, several GPUs and assumptions, too.")
@click.option("--list-gpus", is_flag=True, help="Show the table of GPUs with its sources, and exit.")
@override_options
@json_option
@quiet_option
def command(path: str | None, as_json: bool, **options: Any) -> None:
    """Estimate which GPUs fit a model and its best-case speed.

    MODEL is a bundle, a config's name or YAML file, an .onnx or .gguf file, a folder that transformers or TensorRT-LLM
    saved (an LLM's config.json is enough), a hub id, or the name of a published model such as
    llama-2-7b. Counts come from the network that TensorRT would build; times are lower bounds, from the roofline of
    published GPU figures.
    """
    from trtkit.planning.gpus import find_gpus, planned_gpus

    gpus = find_gpus(options["gpus"].split(",")) if options["gpus"] else planned_gpus()
    if options["list_gpus"]:
        _list_gpus(gpus, as_json=as_json)
        return
    if path is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    check_page(options["html"])
    prices = parse_prices(options["prices"], [gpu.key for gpu in gpus])
    plan = _plan(path, gpus, {**options, "prices": prices, "quiet": options["quiet"] or as_json})
    if options["html"]:
        from trtkit.report.planning import plan_page

        write_output(options["html"], plan_page(plan, page_origin()))
    if as_json:
        click.echo(json.dumps(plan.to_json()))
        return
    from trtkit.cli.tables import show
    from trtkit.report.planning_tables import plan_tables

    show(plan_tables(plan, has_details=options["details"]))


def parse_prices(texts: Sequence[str], known: Sequence[str]) -> dict[str, float]:
    """Return prices by GPU from texts `X` (for all) and `NAME=X`. Raises PlanError."""
    from trtkit.errors import PlanError, choices

    prices: dict[str, float] = {}
    for text in sorted(texts, key=lambda text: "=" in text):
        name, equals, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not 0 < price < float("inf"):
            raise PlanError(f"`{text}` is not a price", "--price", "write it as 2.5, or for one GPU as h200=3.5")
        if equals and name not in known:
            fix = choices(name, known, "trtkit plan --list-gpus")
            raise PlanError(f"`{name}` is not a GPU of this plan", "--price", fix)
        prices |= {name: price} if equals else dict.fromkeys(known, price)
    return prices


def _plan(path: str, gpus: Sequence[PlannedGpu], options: dict[str, Any]) -> Report:
    """Find the model, count its work and plan."""
    from trtkit.cli.progress import show_progress
    from trtkit.planning.plan import PlanRequest, make_plan
    from trtkit.planning.source import find_model

    lengths = (options["input_len"], options["output_len"], options["concurrency"])
    with show_progress(quiet=options["quiet"]) as runner:
        model = find_model(path, options["overrides"], options["target"])
        load = options["prices"], options["requests_per_second"]
        host = host_of(options["host_memory"], options["disk"])
        return make_plan(model, PlanRequest(gpus, *lengths, *load, host), runner)


def host_of(memory_gb: float | None, disk: str | None) -> Host | None:
    """Return the host to offload stages to. Raises PlanError for an invalid disk, or a disk alone."""
    from trtkit.errors import PlanError
    from trtkit.planning.question import Host

    if disk is not None and memory_gb is None:
        raise PlanError("a disk without a host", "--disk", "give the host's memory, too: `--host-memory`")
    try:
        rates = [float(part) for part in (disk or "0").split("/")]
    except ValueError:
        rates = []
    is_valid = disk is None or all(0 < rate < float("inf") for rate in rates)
    if len(rates) not in (1, 2) or not is_valid:
        raise PlanError(
            f"`{disk}` is not the speed of a disk", "--disk", "write READ or READ/WRITE in GB/s, such as 2/1"
        )
    return None if memory_gb is None else Host(int(1e9 * memory_gb), 1e9 * rates[0], 1e9 * rates[-1])


def _list_gpus(gpus: Sequence[PlannedGpu], *, as_json: bool) -> None:
    from trtkit.cli.tables import console, rendered
    from trtkit.planning.report import gpu_facts
    from trtkit.report.planning_tables import gpu_table

    if as_json:
        click.echo(json.dumps([gpu_facts(gpu) for gpu in gpus]))
        return
    console().print(rendered(gpu_table(gpus)), "")
    for gpu in gpus:
        note = f" ({gpu.note})" if gpu.note else ""
        links = [*gpu.sources, *([f"data sheet: {gpu.data_sheet}"] if gpu.data_sheet else [])]
        echo(f"{gpu.key}, read {gpu.read}{note}\n  " + "\n  ".join(links))
