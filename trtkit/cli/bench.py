"""`trtkit bench`."""

from __future__ import annotations

import json
import shlex
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.bench_options import FILE, measure_options
from trtkit.cli.model_options import model_argument, model_options, read_model
from trtkit.cli.options import (
    GroupedCommand,
    RenamedOption,
    check_outputs,
    check_page,
    json_option,
    quiet_option,
    trust_option,
)
from trtkit.cli.say import say

if TYPE_CHECKING:
    from trtkit.benchmarking.report import Report
    from trtkit.bundle.bundle import Bundle
    from trtkit.cli.model_options import Overrides
    from trtkit.jobs.runner import Runner

EPILOG = """\b
Examples:
  trtkit bench bundles/resnet50 --compare torch --compare onnxruntime
  trtkit bench bundles/resnet50 --batch 1,8,32 --save before.json
  trtkit bench bundles/llama --concurrency 1,4,8 --compare transformers
  trtkit bench bundles/llama --request-rate 1,2 --goodput ttft:500
  trtkit bench bundles/llama --trace trace.jsonl --speed 2 --aiperf results
  trtkit bench efficientnet-lite0 --precision fp16 --unverified
  trtkit bench bundles/llama --url grpc://localhost:8001 --concurrency 4
  trtkit bench bundles/resnet50 --url localhost:8000 --concurrency 1,8
  trtkit bench diff before.json after.json

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 4 regression (bench diff)."""
FOLDER = click.Path(path_type=Path, file_okay=False)
WORDS = "trtkit.benchmarking.words"
_KINDS = "torch, torch.compile, onnxruntime, transformers, or a bundle; repeatable."


class BenchCommand(GroupedCommand):
    """`bench MODEL`, and `bench diff A B`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Hand what follows `diff` to that command; keep the words, which a report has."""
        if args[:1] == ["diff"]:
            from trtkit.cli.bench_diff import diff

            return diff.make_context(f"{info_name} diff", args[1:], parent, **extra)
        if len(args) > 2 and get_close_matches(args[0], ["diff"]) and not Path(args[0]).exists():
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean 'diff'?")
        words = list(args)
        context = super().make_context(info_name, args, parent, **extra)
        context.meta[WORDS] = words
        return context


@click.command(cls=BenchCommand, epilog=EPILOG)
@model_argument()
@model_options
@click.option("--compare", "rivals", multiple=True, metavar="WHAT", help=_KINDS)
@trust_option
@measure_options
@click.option("--url", metavar="URL", help="Benchmark the model on a Triton server: grpc:// or http://HOST:PORT.")
@click.option("--model", metavar="NAME", help="Its name on the server.  [default: the bundle's name]")
@click.option("--unverified", is_flag=True, help="Benchmark even if verification failed or is missing.")
@click.option(
    "--save",
    cls=RenamedOption,
    old=["--out"],
    type=FILE,
    metavar="FILE",
    help="Write a JSON report with all samples, for `bench diff`.",
)
@click.option("--csv", type=FILE, metavar="FILE", help="Write the results as CSV.")
@click.option("--html", type=FILE, metavar="FILE", help="Write an HTML report with plots.")
@click.option(
    "--aiperf",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write AIPerf's output files to a folder.",
)
@json_option
@quiet_option
def command(
    path: str, save: Path | None, csv: Path | None, html: Path | None, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Benchmark a bundle, alone or against other runtimes.

    MODEL is a bundle, or anything that `trtkit build` takes, which is first built into bundles/NAME if necessary. Every
    figure names the runtime that produced it. Without a GPU that is the reference executor: its times say nothing about
    an engine's speed.
    """
    from trtkit.benchmarking.run import bench_bundle
    from trtkit.cli.bench_options import bench_request
    from trtkit.cli.progress import show_progress

    aiperf = options["aiperf"]
    check_outputs(save, csv, aiperf)
    check_page(html)
    words = shlex.join(["trtkit", "bench", *click.get_current_context().meta[WORDS]])
    with show_progress(quiet=quiet or as_json) as runner:
        opened, is_built = _opened(path, options["overrides"], options["target"], runner)
        trusts_source = is_built or options["trust_source"]  # a config is code already
        request = bench_request(opened, options, trusts_source=trusts_source)
        report = bench_bundle(opened, request, runner, words)
    _write(report, {"save": save, "csv": csv, "html": html}, aiperf)
    _show(report, as_json=as_json)


def _opened(path: str, overrides: Overrides, target: str | None, runner: Runner) -> tuple[Bundle, bool]:
    """Return a bundle, or the one that a config is built into, and whether it is that."""
    from trtkit.builder.build import build_bundle
    from trtkit.bundle.bundle import Bundle

    model = read_model(path, overrides, target)
    if isinstance(model, Bundle):
        return model, False
    return build_bundle(model, Path("bundles") / model.name, runner).bundle, True


def _write(report: Report, paths: dict[str, Path | None], aiperf: Path | None) -> None:
    """Write the requested files, and say so."""
    from trtkit.benchmarking.report import LlmReport, csv_text, report_text
    from trtkit.files import write_output

    def page_text(report: Report) -> str:
        from trtkit.report.benchmark import html_report

        return html_report(report)

    makers = {"save": report_text, "csv": csv_text, "html": page_text}
    for name, path in paths.items():
        if path is not None:
            write_output(path, makers[name](report))
            say(f"wrote {path}")
    if aiperf is not None and isinstance(report, LlmReport):
        from trtkit.benchmarking.aiperf import write_aiperf

        for path in write_aiperf(aiperf, report):
            say(f"wrote {path}")


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    from trtkit.cli.tables import show
    from trtkit.report.benchmark_tables import bench_tables

    show(bench_tables(report))
