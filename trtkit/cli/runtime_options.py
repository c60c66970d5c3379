"""Options of the commands that run a language model."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli import completions
from trtkit.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trtkit.runtime.llm import LLM, TextBundle

_RUNTIMES = ("auto", "tensorrt", "reference")
_SCHEDULES = ("fcfs", "priority", "mlfq")


class _WeightBudget(click.FloatRange):
    """GiB, or the word `auto`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


weight_budget_option = click.option(
    "--weight-budget",
    "weight_budget_gib",
    type=_WeightBudget(0),
    metavar="GIB|auto",
    help="GPU memory for weights; the others are streamed from host memory.",
)
cache_gib_option = click.option(
    "--cache-gib", type=click.FloatRange(0, min_open=True), metavar="GIB", help="Memory for paged caches per GPU."
)
speculate_option = click.option(
    "--speculate",
    type=int,
    metavar="N",
    help="Draft tokens of the bundle's own head; 0 for none.  [default: 3 if it has one]",
)
_OPTIONS = (
    click.option("--runtime", type=click.Choice(_RUNTIMES), default="auto", help="Runtime.  [default: auto]"),
    click.option("--slots", type=int, metavar="N", help="Concurrent sequences.  [default: the engine's]"),
    cache_gib_option,
    click.option(
        "--host-cache-gib",
        type=click.FloatRange(0),
        default=2.0,
        metavar="GIB",
        help="Host memory for caches that do not fit on the GPU.  [default: 2]",
    ),
    weight_budget_option,
    click.option("--cache-dir", metavar="FOLDER", help="Folder that keeps caches for later runs."),
    click.option(
        "--cache-dir-gib",
        type=click.FloatRange(0, min_open=True),
        default=16.0,
        metavar="GIB",
        help="Maximum size of that folder's files.  [default: 16]",
    ),
    click.option("--prefill-budget", type=int, metavar="N", help="New tokens per step.  [default: the engine's]"),
    click.option(
        "--schedule",
        type=click.Choice(_SCHEDULES),
        default="priority",
        help="Which request runs next; `mlfq` favors short ones.  [default: priority]",
    ),
    speculate_option,
    click.option("--lookup", type=int, default=0, metavar="N", help="Prompt lookup decoding with N draft tokens."),
    click.option(
        "--draft",
        metavar="BUNDLE",
        help="Speculative decoding with a smaller model.",
        shell_complete=completions.bundles,
    ),
)
# What the runtime calls its settings, as options.
_FLAGS = {
    "slots": "--slots",
    "cache_gib": "--cache-gib",
    "host_cache_gib": "--host-cache-gib",
    "weight_budget_gib": "--weight-budget",
    "cache_dir": "--cache-dir",
    "cache_dir_gib": "--cache-dir-gib",
    "token_budget": "--prefill-budget",
    "speculate": "--speculate",
    "lookup": "--lookup",
    "speculation": "--lookup, --draft",
    "adapter": "--lora",
}
CANCELLED = 130
_MEMORY = ("cache_gib", "host_cache_gib", "cache_dir", "cache_dir_gib", "weight_budget_gib")
RUNTIME_NAMES = ("runtime", "slots", *_MEMORY, "prefill_budget", "schedule", "speculate", "lookup", "draft")


def runtime_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the runtime."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def lora_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the LoRA adapters that requests can name."""
    text = "LoRA adapter that requests can name; repeatable."
    option = click.option("--lora", multiple=True, metavar="NAME=FOLDER", callback=_adapters, help=text)
    return option(command)


def _adapters(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return folders by name."""
    pairs = [value.partition("=") for value in values]
    for value, (name, _, folder) in zip(values, pairs, strict=True):
        if not name or not folder:
            raise click.BadParameter(f"`{value}` is not NAME=FOLDER")
    adapters = {name: folder for name, _, folder in pairs}
    if len(adapters) < len(pairs):
        raise click.BadParameter("two adapters have the same name")
    return adapters


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the runtime, and the others."""
    runtime = {name: options[name] for name in (*RUNTIME_NAMES, "lora") if name in options}
    return runtime, {name: value for name, value in options.items() if name not in runtime}


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Let Ctrl-C end the program with a message that fits a stream: what was printed stays."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\ncancelled", err=True)
        sys.exit(CANCELLED)


@contextlib.contextmanager
def faults_by_flag() -> Iterator[None]:
    """Name the option where a setting of the runtime is at fault. Raises RequestError."""
    from trtkit.errors import RequestError

    try:
        yield
    except RequestError as error:
        raise RequestError(error.what, _FLAGS.get(error.where, error.where), error.fix) from None


def open_llm(model: TextBundle, options: Mapping[str, Any]) -> LLM:
    """Open the model, and say on stderr what runs it."""
    from trtkit.runtime.llm import LLM

    say(f"opening {model.path}")
    with faults_by_flag():
        llm = LLM(model, **options)
    say(f"runtime: {llm.description}")
    return llm
