"""`trtkit bench`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.options import json_option, quiet_option

if TYPE_CHECKING:
    from collections.abc import Callable

EPILOG = """\b
Examples:
  trtkit bench bundles/efficientnet-lite0 --compare torch --compare onnxruntime
  trtkit bench bundles/efficientnet-lite0 --batch 1,8,32 --out before.json

\b
Exit codes: 0 done, 1 failed, 2 wrong usage."""
WORDS = "trtkit.bench.words"
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


class BenchCommand(click.Command):
    """`bench BUNDLE`, and `bench diff A B`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Hand what follows `diff` to that command; keep the words, which a report has."""
        if args[:1] == ["diff"]:
            from trtkit.cli.bench_diff import diff

            return diff.make_context(f"{info_name} diff", args[1:], parent, **extra)
        words = list(args)
        made = super().make_context(info_name, args, parent, **extra)
        made.meta[WORDS] = words
        return made


@click.command(cls=BenchCommand, epilog=EPILOG)
@click.argument("bundle")
@click.option(
    "--compare",
    "rivals",
    multiple=True,
    metavar="WHAT",
    help="torch, torch.compile, onnxruntime or a bundle; may be given again.",
)
@click.option(
    "--batch",
    "batches",
    type=Numbers(int),
    default=(),
    metavar="N,N",
    help="Batch sizes.  [default: the profiles' shapes]",
)
@click.option(
    "--runtime",
    type=click.Choice(["auto", "tensorrt", "reference"]),
    default="auto",
    help="What runs it.  [default: auto]",
)
@click.option("--min-runs", type=click.IntRange(1), default=20, help="Measured rounds at least.  [default: 20]")
@click.option("--min-seconds", type=float, default=2.0, help="Measured seconds at least, a case.  [default: 2]")
@click.option(
    "--max-seconds", type=float, default=60.0, help="Stop after these, with 5 rounds at least.  [default: 60]"
)
@click.option("--warmup", type=click.IntRange(0), default=3, help="Rounds that are not counted.  [default: 3]")
@click.option("--unverified", is_flag=True, help="Measure a bundle whose verification failed or is missing.")
@click.option("--out", type=FILE, help="Write the report as JSON.")
@click.option("--csv", type=FILE, help="Write the figures as CSV.")
@json_option
@quiet_option
def command(
    bundle: str, unverified: bool, out: Path | None, csv: Path | None, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Measure a bundle, beside others on the same work.

    Every figure says what computed it: without a GPU that is the reference executor, which shows that the
    network is right and what it costs here, never how fast an engine is.
    """
    from trtkit.bench.provenance import provenance
    from trtkit.bench.report import csv_text, report_text
    from trtkit.cli.progress import show_progress

    for path in (out, csv):
        if path is not None and not path.absolute().parent.is_dir():
            raise click.UsageError(f"cannot write `{path}`: there is no such folder")
    about = provenance(shlex.join(["trtkit", "bench", *click.get_current_context().meta[WORDS]]))
    with show_progress(quiet=quiet or as_json) as on_event:
        found = {"provenance": about, **_measure(bundle, unverified, options, on_event)}
    for path, make in ((out, report_text), (csv, csv_text)):
        _write(path, make, found)
    _show(found, as_json=as_json)


def _measure(
    path: str, is_waived: bool, options: dict[str, Any], on_event: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Measure what the bundle holds."""
    from trtkit.bench.vision import VisionRequest, bench_vision
    from trtkit.engine.bundle import open_bundle

    request = VisionRequest(options["batches"], options["rivals"], options["runtime"], is_waived, _rules(options))
    return bench_vision(open_bundle(Path(path)), request, on_event)


def _rules(options: dict[str, Any]) -> Any:
    from trtkit.bench.timing import Rules

    return Rules(
        warmup_runs=options["warmup"],
        min_runs=options["min_runs"],
        min_s=options["min_seconds"],
        max_s=options["max_seconds"],
    )


def _write(path: Path | None, make: Callable[[dict[str, Any]], str], found: dict[str, Any]) -> None:
    from trtkit.bench.report import write_text

    if path is not None:
        write_text(path, make(found))
        click.echo(f"written: {path}", err=True)


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found))
        return
    from trtkit.cli.bench_tables import bench_tables
    from trtkit.cli.tables import console

    for table in bench_tables(found):
        console().print(table, "")
