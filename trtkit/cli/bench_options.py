"""Options of `trtkit bench`, and the request that they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.options import RenamedOption, grouped
from trtkit.cli.serving_options import serving_options, split_options
from trtkit.serving_options import serving_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.benchmarking.request import BenchRequest, Load
    from trtkit.bundle.bundle import Bundle

FILE = click.Path(path_type=Path, dir_okay=False)


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """Numbers with commas between them, each above 0."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.name, self._kind = "numbers", kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a tuple of numbers."""
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
    """Return an option for a whole number. old: what it was called, which is still the argument's name."""
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
    """Return an option for a number from 0 on, or above it."""
    kind = click.FloatRange(0, min_open=is_open)
    return click.option(name, type=kind, default=default, metavar=metavar, help=_help(text, default))


def _help(text: str, default: float | None) -> str:
    """Return help with the default if it is not nothing."""
    return f"{text}  [default: {default:g}]" if default else text


_CONCURRENCY_HELP = "Concurrent requests.  [default: 1]"
_RATE_HELP, _PATTERNS = "Requests per second (open loop).", click.Choice(["poisson", "constant"])
_GRAPHS_HELP = "Use CUDA graphs.  [default: for decode steps only]"
_TRACE_HELP = "Replay a trace: Mooncake JSON lines or Azure CSV."
_GOODPUT_HELP = "Latency objective: ttft, tpot or e2e in ms; repeatable."
_BATCH_HELP = "Batch sizes.  [default: those of the profiles]"

# Of ServingOptions: vision models have these too, or no benchmark does.
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
"""Options of a load that a served network takes too."""

VISION_NAMES = ("batches", "min_runs", "min_seconds", "max_seconds", "warmup")


def measure_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of both kinds of model."""
    command = grouped("Load on a language model or a server", *_LOAD)(command)
    command = serving_options("run", without=("lora",))(command)
    return grouped("Rounds on a vision model", *_VISION)(command)


def refuse_options(names: tuple[str, ...], why: str) -> None:
    """Raise UsageError where one of the options was given."""
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
