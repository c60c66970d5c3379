"""`trtkit bench diff`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from trtkit.cli import completions
from trtkit.cli.options import json_option, run_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from trtkit.benchmarking.diff import Diff

EPILOG = """\b
Examples:
  trtkit bench diff before.json after.json
  trtkit bench diff before.json after.json --relative-to torch --threshold 3

\b
Exit codes: 0 no regression, 1 failed, 2 wrong usage, 4 a regression."""
REGRESSION = 4
_STYLES = {"regression": "bold red", "improvement": "green"}


@click.command(epilog=EPILOG)
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
