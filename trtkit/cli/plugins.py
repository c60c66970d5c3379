"""`trtkit plugins`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.options import json_option, quiet_option, run_options
from trtkit.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from trtkit.network.custom_op import CustomOp
    from trtkit.verification.custom_ops.outcomes import Outcome

EPILOG = """\b
Examples:
  trtkit plugins list
  trtkit plugins list deform_conv
  trtkit plugins check deform_conv
  TRTKIT_PLUGINS=my_ops trtkit plugins check

Ops are folders: trtkit's own, and those in the folders that TRTKIT_PLUGINS
lists, separated by colons."""
_OUT_OF_TOLERANCE = 3


@click.group(epilog=EPILOG)
def command() -> None:
    """List custom ops, or check them against their references."""


@command.command("list")
@click.argument("op", required=False)
@json_option
@run_options
def list_ops(op: str | None, as_json: bool) -> None:
    """List custom ops, one line each, or show all about OP."""
    from trtkit.network.custom_op import find, load_ops
    from trtkit.verification.custom_ops.record import describe_op

    descriptions = [describe_op(custom_op) for custom_op in ([find(op)] if op else load_ops().values())]
    if as_json:
        click.echo(json.dumps(descriptions))
        return
    from trtkit.cli.tables import show

    show(map(_described, descriptions) if op else _overview(descriptions))


@command.command("check")
@click.argument("op", required=False)
@json_option
@quiet_option
def check_ops(op: str | None, as_json: bool, quiet: bool) -> None:
    """Compare every implementation of OP, or of all ops, with its reference.

    Exits with 3 if one is out of tolerance. Kernels run in Triton's interpreter on the CPU.
    """
    from trtkit.network.custom_op import find, load_ops

    ops = [find(op)] if op else list(load_ops().values())
    outcomes = [outcome for custom_op in ops for outcome in _outcomes(custom_op, is_quiet=quiet or as_json)]
    if as_json:
        click.echo(json.dumps([asdict(outcome) | {"is_within": outcome.is_within} for outcome in outcomes]))
    else:
        from trtkit.cli.tables import show

        names = dict.fromkeys(outcome.op for outcome in outcomes)
        show(_errors(name, [outcome for outcome in outcomes if outcome.op == name]) for name in names)
    if not all(outcome.is_within for outcome in outcomes):
        sys.exit(_OUT_OF_TOLERANCE)


def _outcomes(op: CustomOp, *, is_quiet: bool) -> Iterator[Outcome]:
    """Yield the outcomes of an op's trials, and print the running one on stderr."""
    from trtkit.backends import choose_backend, load_backend
    from trtkit.verification.custom_ops.outcomes import outcomes, trials

    backend = load_backend(choose_backend())
    for trial in trials(op):
        if not is_quiet:
            say(f"{op.name}: {trial}")
        yield from outcomes(backend, trial)


def _overview(ops: list[dict[str, Any]]) -> Iterator[RenderableType]:
    """Yield the table of ops, one line each, with a note on what it leaves out."""
    from rich.text import Text

    from trtkit.cli.tables import listing

    table = listing("", "op", "replaces", "kernel", "plugin")
    for op in ops:
        first, *others = op["foreign"] or ["(called by name)"]
        nodes = f"{first}, {len(others)} more" if others else first
        has = ("yes" if op[part] != "none" else "no" for part in ("kernel", "plugin"))
        table.add_row(op["name"], nodes, *has)
    yield table
    yield Text("No kernel and no plugin has run on a GPU yet. `trtkit plugins list OP` shows all about one.")


def _described(op: dict[str, Any]) -> Table:
    from trtkit.cli.tables import pairs

    table = pairs(op["name"])
    table.add_row("folder", op["folder"])
    table.add_row("implements", ", ".join(op["foreign"]) or "no ONNX node; called by name")
    table.add_row("takes", ", ".join(op["inputs"]))
    table.add_row("lowerings", ", ".join(op["forms"]))
    table.add_row("kernel", op["kernel"])
    table.add_row("plugin", op["plugin"])
    return table


def _errors(op: str, outcomes: list[Outcome]) -> Table:
    from trtkit.cli.tables import listing

    title = f"{op}: relative RMS error against the reference"
    table = listing(title, "case", "type", "implementation", "error", "layers")
    for outcome in outcomes:
        way = f"{outcome.route}, {outcome.form}" if outcome.form else outcome.route
        error = f"{outcome.relative_rms_error:.1e}"
        style = None if outcome.is_within else "red"
        if outcome.problem:
            way = f"{way}: {outcome.problem}"
        layers = str(outcome.layers or "")
        table.add_row(outcome.case, outcome.dtype, way, error, layers, style=style)
    return table
