"""`trtkit bench`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli import completions
from trtkit.cli.model_options import model_argument, model_options, read_model
from trtkit.cli.options import (
    GroupedCommand,
    RenamedOption,
    check_outputs,
    check_page,
    grouped,
    json_option,
    quiet_option,
    run_options,
    trust_option,
)
from trtkit.cli.say import say
from trtkit.cli.serving_options import serving_options, split_options
from trtkit.serving_options import serving_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from trtkit.benchmarking.diff import Diff
    from trtkit.benchmarking.report import Report
    from trtkit.benchmarking.request import BenchRequest, Load
    from trtkit.bundle.bundle import Bundle
    from trtkit.cli.model_options import Overrides
    from trtkit.jobs.runner import Runner


FILE = click.Path(path_type=Path, dir_okay=False)


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """Comma-separated numbers, each above 0."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.name, self._kind = "numbers", kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(self._kind(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < number < float("inf") for number in numbers):
            self.fail(f"{value!r} is not a comma-separated list of positive numbers, such as 1,4,16")
        return numbers


_Option = Callable[[Callable[..., None]], Callable[..., None]]


def _count(name: str, text: str, default: int | None = None, least: int = 1, old: str = "") -> _Option:
    """Return an option for an integer. old: its earlier name, which is still the argument's name."""
    names = (name, old.replace("-", "_")) if old else (name,)
    return click.option(
        *names,
        cls=RenamedOption,
        old=[f"--{old}"] if old else [],
        type=click.IntRange(least),
        default=default,
        metavar="N",
        help=_help(text, default),
    )


def _amount(name: str, text: str, default: float, metavar: str = "N", *, is_open: bool = False) -> _Option:
    """Return an option for a number that is at least 0, or above 0 if `is_open`."""
    kind = click.FloatRange(0, min_open=is_open)
    return click.option(name, type=kind, default=default, metavar=metavar, help=_help(text, default))


def _help(text: str, default: float | None) -> str:
    """Return the help text with the default, if there is one."""
    return f"{text}  [default: {default:g}]" if default else text


_CONCURRENCY_HELP = "Concurrent requests.  [default: 1]"
_RATE_HELP, _PATTERNS = "Requests per second (open loop).", click.Choice(["poisson", "constant"])
_GRAPHS_HELP = "Use CUDA graphs.  [default: for decode steps only]"
_TRACE_HELP = "Replay a trace: Mooncake JSON lines or Azure CSV."
_GOODPUT_HELP = "Latency objective: ttft, tpot or e2e in ms; repeatable."
_BATCH_HELP = "Batch sizes.  [default: those of the profiles]"

# ServingOptions that vision models have too, or that no benchmark has.
_FOR_ALL = ("runtime", "weight_budget_gib", "lora")
LOAD_NAMES = (
    "trace", "speed", "rounds", "prompts", "input_tokens", "output_tokens", "input_deviation", "output_deviation",
    "shared_tokens", "prefixes", *(name for name in serving_fields("run") if name not in _FOR_ALL), "aiperf",
)  # fmt: skip

_VISION = (
    click.option("--batch", "batches", type=Numbers(int), default=(), metavar="N,N", help=_BATCH_HELP),
    _count("--min-runs", "Minimum number of measured rounds.", 20),
    _amount("--min-seconds", "Minimum measured time per case, in seconds.", 2.0, "S"),
    _amount("--max-seconds", "Maximum time per case, in seconds (at least 5 rounds run).", 60.0, "S"),
    _count("--warmup", "Warmup rounds.", 3, least=0),
)
_LOAD = (
    click.option("--cuda-graphs/--no-cuda-graphs", "has_cuda_graphs", default=None, help=_GRAPHS_HELP),
    click.option("--concurrency", type=Numbers(int), default=(), metavar="N,N", help=_CONCURRENCY_HELP),
    click.option("--request-rate", type=Numbers(float), default=(), metavar="R,R", help=_RATE_HELP),
    click.option(
        "--arrivals", type=_PATTERNS, default="poisson", help="Arrivals at --request-rate.  [default: poisson]"
    ),
    click.option("--trace", metavar="FILE", help=_TRACE_HELP),
    _amount("--speed", "Speed-up of the trace.", 1.0, "X", is_open=True),
    _count("--requests", "Requests per round.  [default: 16, or all in the file]"),
    _count("--rounds", "Rounds per case.  [default: 1; 3 with --compare]"),
    click.option("--prompts", metavar="FILE", help="Read prompts from a file, as `trtkit generate` does."),
    _count("--input-len", "Input tokens per synthetic prompt.", 128, old="input-tokens"),
    _count("--output-len", "Output tokens per request.", 32, old="output-tokens"),
    _amount("--input-deviation", "Standard deviation of the prompt lengths.", 0.0),
    _amount("--output-deviation", "Standard deviation of the output lengths.", 0.0),
    _count("--shared-tokens", "Length of the prefix that prompts share.", 0, least=0),
    _count("--prefixes", "Number of different shared prefixes.", 1),
    click.option("--goodput", "objectives", multiple=True, metavar="NAME:MS", help=_GOODPUT_HELP),
    click.option("--seed", type=int, default=0, metavar="N", help="Seed of prompts and arrivals.  [default: 0]"),
)
SERVER_NAMES = ("concurrency", "request_rate", "arrivals", "requests", "objectives", "seed")
"""Load options that apply to a served network too."""

VISION_NAMES = ("batches", "min_runs", "min_seconds", "max_seconds", "warmup")


def measure_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the benchmark options of language and vision models to a command."""
    command = grouped("Load on a language model or a server", *_LOAD)(command)
    command = serving_options("run", without=("lora",))(command)
    return grouped("Rounds on a vision model", *_VISION)(command)


def refuse_options(names: tuple[str, ...], why: str) -> None:
    """Raise UsageError if one of the options was given."""
    context = click.get_current_context()
    by_name = {parameter.name: parameter for parameter in context.command.params}
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise click.UsageError(f"{by_name[name].opts[0]} {why}")


_LOAD_FIELDS = (
    "concurrency", "request_rate", "arrivals", "trace", "speed", "requests", "rounds", "prompts", "seed",
    "input_tokens", "output_tokens", "input_deviation", "output_deviation", "shared_tokens", "prefixes",
)  # fmt: skip


def bench_request(bundle: Bundle, options: Mapping[str, Any], *, trusts_source: bool) -> BenchRequest:
    """Return the benchmark request for the options. Raises BenchError or UsageError for what cannot be measured."""
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
    """Raise UsageError for options that do not apply to the bundle."""
    if bundle.manifest.interface == "tokens":
        refuse_options(VISION_NAMES, "does not apply to language models")
        return
    refuse_options(LOAD_NAMES, "applies to language models only")
    if not options["url"]:
        refuse_options(SERVER_NAMES, "applies to language models, or to a server (--url)")


def _refuse_contradictions(bundle: Bundle, load: Load, *, has_rivals: bool) -> None:
    """Raise UsageError for mutually exclusive options."""
    if len(load.arrival_fields) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in load.arrival_fields[:2])
        raise click.UsageError(f"{first} and {second} cannot be combined")
    if load.trace is not None and load.prompts is not None:
        raise click.UsageError("--prompts cannot be combined with --trace, which sets the prompt lengths")
    if bundle.manifest.interface == "arrays" and load.arrival_fields and has_rivals:
        raise click.UsageError("--compare cannot be combined with --url")


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
    """`bench MODEL`, or `bench diff A B`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Pass the arguments after `diff` to that command; keep the command line for the report."""
        if args[:1] == ["diff"]:
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
    from trtkit.cli.progress import show_progress

    aiperf = options["aiperf"]
    check_outputs(save, csv, aiperf)
    check_page(html)
    words = shlex.join(["trtkit", "bench", *click.get_current_context().meta[WORDS]])
    with show_progress(quiet=quiet or as_json) as runner:
        opened, is_built = _opened(path, options["overrides"], options["target"], runner)
        trusts_source = is_built or options["trust_source"]  # a config is trusted code anyway
        request = bench_request(opened, options, trusts_source=trusts_source)
        report = bench_bundle(opened, request, runner, words)
    _write(report, {"save": save, "csv": csv, "html": html}, aiperf)
    _show(report, as_json=as_json)


def _opened(path: str, overrides: Overrides, target: str | None, runner: Runner) -> tuple[Bundle, bool]:
    """Return a bundle, or the one built from a config, and whether it was built here."""
    from trtkit.builder.build import build_bundle
    from trtkit.bundle.bundle import Bundle

    model = read_model(path, overrides, target)
    if isinstance(model, Bundle):
        return model, False
    return build_bundle(model, Path("bundles") / model.name, runner).bundle, True


def _write(report: Report, paths: dict[str, Path | None], aiperf: Path | None) -> None:
    """Write the requested files and report them."""
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


_DIFF_EPILOG = """\b
Examples:
  trtkit bench diff before.json after.json
  trtkit bench diff before.json after.json --relative-to torch --threshold 3

\b
Exit codes: 0 no regression, 1 failed, 2 wrong usage, 4 a regression."""
REGRESSION = 4
_STYLES = {"regression": "bold red", "improvement": "green"}


@click.command(epilog=_DIFF_EPILOG)
@click.argument("before", shell_complete=completions.files)
@click.argument("after", shell_complete=completions.files)
@click.option(
    "--threshold", type=click.FloatRange(0, 1000), default=5.0, help="Ignore changes up to this, in %.  [default: 5]"
)
@click.option("--relative-to", metavar="NAME", help="Normalize to another runtime in the same reports.")
@json_option
@run_options
def diff(before: str, after: str, threshold: float, relative_to: str | None, as_json: bool) -> None:
    """Compare two reports of the same command and tell regressions from noise.

    A regression is a ratio of medians above the threshold whose bootstrap interval excludes 1. On a shared machine,
    run both with the same --compare runtime and pass it as --relative-to.
    """
    from trtkit.benchmarking.diff import diff_reports
    from trtkit.benchmarking.report import read_report
    from trtkit.jobs.json_form import to_json

    changes = diff_reports(read_report(before), read_report(after), threshold / 100, relative_to)
    if as_json:
        click.echo(json.dumps(to_json(changes)))
    else:
        from trtkit.cli.tables import console

        for part in _tables(changes):
            console().print(part)
    sys.exit(REGRESSION if changes.has_regression else 0)


def _tables(changes: Diff) -> Iterator[RenderableType]:
    from rich.text import Text

    from trtkit.cli.tables import listing

    rows = listing("after / before", "case", "contender", "metric", "ratio", "95 %", "")
    for row in changes.rows:
        verdict = Text(row.verdict, _STYLES.get(row.verdict, ""))
        interval = f"{row.low:.3f} to {row.high:.3f}"
        rows.add_row(row.case, row.contender, row.metric, f"{row.ratio:.3f}", interval, verdict)
    yield rows
    for difference in changes.differences:
        yield Text(f"differs: {difference}", "yellow")
    limit = f"beyond {changes.threshold:.0%}"
    yield Text(f"a regression {limit}" if changes.has_regression else f"no regression {limit}", "bold")
