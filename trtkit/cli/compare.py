"""`trtkit compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli import completions
from trtkit.cli.local_model import local_config
from trtkit.cli.model_options import model_argument, model_options, output_option
from trtkit.cli.options import check_page, json_option, page_origin, quiet_option
from trtkit.files import write_output

if TYPE_CHECKING:
    from trtkit.cli.model_options import Overrides

FILE = click.Path(path_type=Path, dir_okay=False)
EPILOG = """\b
Examples:
  trtkit compare efficientnet-lite0 --variants fp32,fp16,int8 --images val
  trtkit compare llama --variants fp16,int8_wo,int4_awq --text book.txt
  trtkit compare model.onnx --variants fp32,fp16 --gpu t4 --html compare.html

\b
Needs no GPU. int8 and other methods that calibrate need data:
`--set quantize.calibration.data=FOLDER`.
Exit codes: 0 done, 1 failed or no variant passed, 2 wrong usage."""


@click.command(epilog=EPILOG)
@model_argument(bundles=False)
@click.option(
    "--variants", required=True, metavar="NAME,...", help="Precisions and quantization methods, the baseline first."
)
@click.option("--images", type=click.Path(path_type=Path, file_okay=False), help="Labelled pictures, as for `eval`.")
@click.option("--truth", type=FILE, help="Expected answers: a CSV file, or COCO annotations.")
@click.option("--text", type=FILE, metavar="FILE", help="UTF-8 text to measure perplexity on.")
@click.option(
    "--windows", type=click.IntRange(0), default=8, metavar="N", help="Windows of the text; 0 for all.  [default: 8]"
)
@click.option(
    "--gpu", default="l4", show_default=True, metavar="NAME", help="GPU to plan for.", shell_complete=completions.gpus
)
@click.option(
    "--max-loss",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="X",
    help="What a variant may lose against the baseline: points of accuracy, or percent of perplexity.",
)
@output_option("Folder for the bundles, each as NAME-VARIANT.  [default: bundles]", file_okay=False)
@click.option("--html", type=FILE, metavar="FILE", help="Write an HTML report with a plot.")
@model_options
@json_option
@quiet_option
def command(
    path: str,
    variants: str,
    images: Path | None,
    truth: Path | None,
    text: Path | None,
    windows: int,
    gpu: str,
    max_loss: float,
    out: Path | None,
    html: Path | None,
    target: str | None,
    overrides: Overrides,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare a model's precisions and quantization methods: size, error, quality, planned time.

    Each variant is built, verified against the source's own runtime, evaluated on your data and planned for a GPU. The
    verdict is the smallest engine that `verify` passes and that loses at most --max-loss against the first variant.
    """
    from trtkit.benchmarking.variants import VariantsRequest, compare_variants, names
    from trtkit.cli.progress import show_progress
    from trtkit.cli.tables import show
    from trtkit.report.variants import variant_tables, variants_page

    if truth is not None and images is None:
        raise click.UsageError("--truth goes with --images")
    check_page(html)
    request = VariantsRequest(names(variants), images, truth, text, gpu, max_loss, windows)
    config = local_config(path, overrides, target)
    with show_progress(quiet=quiet or as_json) as runner:
        compared = compare_variants(config, out or Path("bundles"), request, runner)
    if html is not None:
        write_output(html, variants_page(compared, page_origin()))
    if as_json:
        click.echo(json.dumps(compared.to_json()))
    else:
        show(variant_tables(compared))
    if not compared.best:
        raise SystemExit(1)
