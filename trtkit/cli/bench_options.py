"""Options of `trtkit bench`: what to measure, and the load of a language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.llm_options import llm_options

if TYPE_CHECKING:
    from collections.abc import Callable

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
            found = tuple(self._kind(part) for part in str(value).split(","))
        except ValueError:
            found = ()
        if not found or not all(0 < number < float("inf") for number in found):
            self.fail(f"{value!r} is not numbers above 0 with commas between them, such as 1,4,16")
        return found


_COUNT = click.IntRange(1)
_VISION = (
    click.option(
        "--batch",
        "batches",
        type=Numbers(int),
        default=(),
        metavar="N,N",
        help="Batch sizes.  [default: the profiles' shapes]",
    ),
    click.option("--min-runs", type=_COUNT, default=20, metavar="N", help="Measured rounds at least.  [default: 20]"),
    click.option(
        "--min-seconds",
        type=click.FloatRange(0),
        default=2.0,
        metavar="S",
        help="Measured seconds of a case at least.  [default: 2]",
    ),
    click.option(
        "--max-seconds",
        type=click.FloatRange(0),
        default=60.0,
        metavar="S",
        help="Stop after these, with 5 rounds at least.  [default: 60]",
    ),
    click.option(
        "--warmup", type=click.IntRange(0), default=3, metavar="N", help="Rounds that are not counted.  [default: 3]"
    ),
)
_LOAD = (
    click.option("--concurrency", type=Numbers(int), metavar="N,N", help="Requests under way at once.  [default: 1]"),
    click.option(
        "--request-rate", type=Numbers(float), metavar="R,R", help="Requests a second, sent when they are due."
    ),
    click.option(
        "--arrivals",
        type=click.Choice(["poisson", "constant"]),
        default="poisson",
        help="How they come at a rate.  [default: poisson]",
    ),
    click.option("--trace", metavar="FILE", help="Requests of a trace: Mooncake's JSON lines, or Azure's CSV."),
    click.option(
        "--speed",
        type=click.FloatRange(0, min_open=True),
        default=1.0,
        metavar="X",
        help="Times as fast as the trace.  [default: 1]",
    ),
    click.option("--requests", type=_COUNT, metavar="N", help="Requests of a round.  [default: 16, or all of a file]"),
    click.option("--rounds", type=_COUNT, metavar="N", help="Rounds of a case.  [default: 1; 3 with --compare]"),
    click.option("--prompts", metavar="FILE", help="Prompts of a file, as `trtkit generate` takes them."),
    click.option(
        "--input-tokens", type=_COUNT, default=128, metavar="N", help="Length of a made-up prompt.  [default: 128]"
    ),
    click.option("--output-tokens", type=_COUNT, default=32, metavar="N", help="Length of an answer.  [default: 32]"),
    click.option(
        "--input-deviation",
        type=click.FloatRange(0),
        default=0.0,
        metavar="N",
        help="Standard deviation of prompts' lengths.",
    ),
    click.option(
        "--output-deviation",
        type=click.FloatRange(0),
        default=0.0,
        metavar="N",
        help="Standard deviation of answers' lengths.",
    ),
    click.option(
        "--shared-tokens", type=click.IntRange(0), default=0, metavar="N", help="Tokens that prompts begin alike with."
    ),
    click.option("--prefixes", type=_COUNT, default=1, metavar="N", help="How many such beginnings.  [default: 1]"),
    click.option(
        "--goodput",
        "objectives",
        multiple=True,
        metavar="NAME:MS",
        help="An objective: ttft, tpot or e2e in ms; may be given again.",
    ),
    click.option("--seed", type=int, default=0, metavar="N", help="Of prompts and arrivals.  [default: 0]"),
)
LOAD_NAMES = (
    "concurrency", "request_rate", "arrivals", "trace", "speed", "requests", "rounds", "prompts", "input_tokens",
    "output_tokens", "input_deviation", "output_deviation", "shared_tokens", "prefixes", "objectives", "seed", "slots",
    "prefill_budget", "lookup", "draft", "aiperf",
)  # fmt: skip
VISION_NAMES = ("batches", "min_runs", "min_seconds", "max_seconds", "warmup")


def measure_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of both kinds of model."""
    for option in reversed(_LOAD):
        command = option(command)
    command = llm_options(command)
    for option in reversed(_VISION):
        command = option(command)
    return command


def refuse_given(names: tuple[str, ...], why: str) -> None:
    """Raise UsageError where one of the options was given."""
    context = click.get_current_context()
    by_name = {parameter.name: parameter for parameter in context.command.params}
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise click.UsageError(f"{by_name[name].opts[0]} {why}")
