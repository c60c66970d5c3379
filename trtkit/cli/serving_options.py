"""`ServingOptions` as flags, for commands that run or serve a language model."""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtkit.cli import completions
from trtkit.cli.options import Terminated, grouped
from trtkit.cli.say import say, warn
from trtkit.serving_options import ServingOptions, default_of, flag_of, help_of, option_of, serving_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtkit.llm import LLM, TextBundle
    from trtkit.llm.replicas import PromptSource, Replicas
    from trtkit.serving_options import ServingField, Surface

    Command = Callable[..., None]
    _Model = TypeVar("_Model", bound=LLM | Replicas)

CANCELLED = 130
# Flags whose names differ from the runtime's settings.
_OTHER_NAMES = {"token_budget": "--prefill-budget", "speculation": "--lookup, --draft", "adapter": "--lora"}


class _WeightBudget(click.FloatRange):
    """GiB, or `auto`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


def _folders(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    return folders_by_name(values)


def folders_by_name(values: Sequence[str], flag: str | None = None) -> dict[str, str]:
    """Return folders from NAME=FOLDER. flag: for errors, if click does not know it. Raises BadParameter."""
    pairs = [value.partition("=") for value in values]
    for value, (name, _, folder) in zip(values, pairs, strict=True):
        if not name or not folder:
            raise click.BadParameter(f"`{value}` is not NAME=FOLDER", param_hint=flag)
    by_name = {name: folder for name, _, folder in pairs}
    if len(by_name) < len(pairs):
        raise click.BadParameter("two adapters have the same name", param_hint=flag)
    return by_name


def _weights(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, float] | None:
    """Return users' weights by name; None without any."""
    weights = {}
    for value in values:
        user, _, weight = value.rpartition("=")
        try:
            weights[user] = float(weight)
        except ValueError:
            weights[user] = 0.0
        if not user or not 0 < weights[user] < float("inf"):
            raise click.BadParameter(f"`{value}` is not USER=WEIGHT with a positive number, such as `alice=2`")
    return weights or None


def _flag(item: ServingField, surface: Surface) -> Callable[[Command], Command]:
    option = option_of(item)
    is_open = option.least is None
    of_kind: dict[str, dict[str, Any]] = {
        "count": {"type": click.IntRange(option.least) if surface == "serve" else int, "metavar": "N"},
        "gib": {"type": click.FloatRange(0, min_open=is_open), "metavar": "GIB"},
        "budget": {"type": _WeightBudget(0), "metavar": "GIB|auto"},
        "name": {"type": click.Choice(option.choices)},
        "folder": {"metavar": "FOLDER"},
        "bundle": {"metavar": "BUNDLE", "shell_complete": completions.bundles},
        "weights": {"multiple": True, "metavar": "USER=WEIGHT", "callback": _weights},
        # `trtkit serve` parses these once it knows how many models there are.
        "folders": {"multiple": True, "metavar": "NAME=FOLDER", "callback": None if surface == "serve" else _folders},
    }
    facts = of_kind[option.kind]
    is_repeatable = facts.get("multiple", False)
    text = help_of(item, surface, with_default=not is_repeatable)
    if is_repeatable:
        text = f"{text.removesuffix('.')}; repeatable."
    else:
        facts["default"] = default_of(item, surface)
    return click.option(flag_of(item), item.name, help=text, **facts)


_SPECULATION = frozenset({"speculate", "lookup", "draft"})


def serving_options(surface: Surface, *, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Add the flags of a surface to a command, in two groups of its help."""
    items = [item for name, item in serving_fields(surface).items() if name not in without]
    groups = {
        "Runtime and memory": [item for item in items if item.name not in _SPECULATION],
        "Speculative decoding": [item for item in items if item.name in _SPECULATION],
    }
    marked = [grouped(title, *(_flag(item, surface) for item in group)) for title, group in groups.items()]
    return lambda command: functools.reduce(lambda inner, group: group(inner), reversed(marked), command)


def serving_option(name: str) -> Callable[[Command], Command]:
    """Add one of the flags to a command."""
    return _flag(serving_fields("run")[name], "run")


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that are ServingOptions, and the others."""
    names = {item.name for item in fields(ServingOptions) if option_of(item).surfaces}
    serving = {name: value for name, value in options.items() if name in names}
    return serving, {name: value for name, value in options.items() if name not in names}


@contextlib.contextmanager
def cancellable(kept: str = "") -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a command with a message; output so far is kept. kept: says where it is."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\ncancelled{kept}", err=True)
        sys.exit(CANCELLED)
    except Terminated as stop:
        click.echo(f"\nterminated{kept}", err=True)
        sys.exit(stop.code)


@contextlib.contextmanager
def faults_by_flag() -> Iterator[None]:
    """Name the flag if a setting of the runtime is invalid. Raises RequestError."""
    from trtkit.errors import RequestError

    flags = {item.name: flag_of(item) for item in fields(ServingOptions) if option_of(item).surfaces} | _OTHER_NAMES
    try:
        yield
    except RequestError as error:
        raise RequestError(error.what, flags.get(error.where, error.where), error.fix) from None


@contextlib.contextmanager
def open_llm(model: TextBundle, options: Mapping[str, object]) -> Iterator[LLM]:
    """Open the model; see `_opened`."""
    from trtkit.llm import LLM

    with _opened(model, lambda: LLM(model, **options)) as llm:
        yield llm


@contextlib.contextmanager
def open_replicas(model: TextBundle, options: ServingOptions, source: PromptSource, count: int) -> Iterator[Replicas]:
    """Open the model in `count` processes; see `_opened`."""
    from trtkit.llm.replicas import Replicas

    with _opened(model, lambda: Replicas(model.bundle, options, source, count)) as replicas:
        yield replicas


@contextlib.contextmanager
def _opened(model: TextBundle, open_model: Callable[[], _Model]) -> Iterator[_Model]:
    """Open the model and print what runs it on stderr; at the end, warn if it left out active neurons."""
    say(f"opening {model.path}")
    with faults_by_flag():
        llm = open_model()
    say(f"runtime: {llm.description}")
    with llm:
        yield llm
        done = llm.statistics
        if done.missed_blocks:
            share = f"{done.missed_blocks} of {done.active_blocks} active blocks of neurons"
            warn(f"{share} were left out, so answers are not exact: build with a larger `llm.sparse_ffn.keep`")
