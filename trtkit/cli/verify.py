"""`trtkit verify`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli.model_options import model_argument, model_options, read_model
from trtkit.cli.options import check_outputs, check_page, json_option, page_origin, quiet_option, trust_option
from trtkit.cli.say import say
from trtkit.files import write_output

if TYPE_CHECKING:
    from trtkit.cli.model_options import Overrides
    from trtkit.jobs.runner import Runner
    from trtkit.verification.report import Report
    from trtkit.verification.verify import VerifySettings

EPILOG = """\b
Examples:
  trtkit verify bundles/efficientnet-lite0
  trtkit verify model.onnx --precision fp16 --layers --html report.html
  trtkit verify my.yaml --precision fp16 --fix my-fixed.yaml
  trtkit verify ppocr-det --inputs photos/ --no-corners --json
  trtkit verify bundles/llama --text book.txt

\b
Exit codes: 0 pass, 1 failed, 2 wrong usage or config, 3 out of tolerance."""

OUT_OF_TOLERANCE = 3


@click.command(epilog=EPILOG)
@model_argument()
@click.option(
    "--inputs",
    multiple=True,
    metavar="PATH",
    help="Images, .npz, Polygraphy data, or a folder.  [default: the config's]",
)
@click.option(
    "--against", type=click.Choice(["onnxruntime", "torch"]), help="Reference.  [default: the source's own framework]"
)
@click.option(
    "--layers/--no-layers",
    default=None,
    help="Compare every layer with a higher-precision run and show its range.  [default: after a failure]",
)
@click.option("--corners/--no-corners", default=True, help="Test each profile's min, opt, max and random shapes.")
@click.option("--text", metavar="FILE", help="Compare an LLM's perplexity on this text with transformers.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML report with plots.")
@click.option(
    "--fix",
    type=click.Path(path_type=Path, dir_okay=False),
    help="If fp16 or bf16 fails, find the nodes to keep in fp32 and write a repaired copy of the config.",
)
@trust_option
@model_options
@json_option
@quiet_option
def command(
    path: str,
    inputs: tuple[str, ...],
    against: str | None,
    layers: bool | None,
    corners: bool,
    text: str | None,
    html: Path | None,
    fix: Path | None,
    trust_source: bool,
    target: str | None,
    overrides: Overrides,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check a network's numerics without a GPU.

    MODEL is a bundle, a config's name or YAML file, an .onnx or .gguf file, a folder that transformers or TensorRT-LLM
    saved, or a hub id. The reference executor runs the exact network that TensorRT builds and compares its outputs with
    ONNX Runtime or PyTorch on the source model.
    """
    from trtkit.bundle.bundle import Bundle
    from trtkit.cli.progress import show_progress
    from trtkit.verification.verify import VerifySettings

    _check_outputs(path, html, fix)
    has_layers = True if fix is not None or (html is not None and layers is None) else layers
    request = VerifySettings(inputs, against, has_layers, corners, text, trust_source)
    with show_progress(quiet=quiet or as_json) as runner:
        report = _verify(path, request, overrides, target, runner)
        if fix is not None and not report.passed:
            report = _fix(path, fix, report, request, overrides, target, runner)
    if html is not None:
        from trtkit.report.verification import html_report

        model = read_model(path, overrides, target)
        write_output(html, html_report(report, page_origin(model if isinstance(model, Bundle) else None)))
    _show(report, html, as_json=as_json)
    sys.exit(0 if report.passed else OUT_OF_TOLERANCE)


def _check_outputs(path: str, html: Path | None, fix: Path | None) -> None:
    """Refuse outputs that could not be written once the work is done."""
    from trtkit.bundle.bundle import is_bundle_folder

    check_page(html)
    check_outputs(fix)
    if fix is not None and is_bundle_folder(path):
        raise click.UsageError("a bundle cannot be repaired: verify its config with --fix, then build again")


def _verify(
    path: str,
    request: VerifySettings,
    overrides: Overrides,
    target: str | None,
    runner: Runner,
) -> Report:
    """Verify a bundle as it is, or the network of a config."""
    from trtkit.bundle.bundle import Bundle
    from trtkit.deployment.make_known import verify_and_remember
    from trtkit.verification.verify import verify_config

    model = read_model(path, overrides, target)
    if isinstance(model, Bundle):
        return verify_and_remember(model, request, runner)
    return verify_config(model, request, runner)


def _fix(
    path: str,
    out: Path,
    report: Report,
    request: VerifySettings,
    overrides: Overrides,
    target: str | None,
    runner: Runner,
) -> Report:
    """Repair the config at `path` and write the copy to `out`."""
    from trtkit.config.load import find_model_config
    from trtkit.verification.fix import config_yaml, repair
    from trtkit.verification.report import Repair

    config, report = repair(find_model_config(path, overrides, target), report, request, runner)
    write_output(out, config_yaml(config))
    return replace(report, fixed=Repair(str(out), config.keep_fp32))


def _show(report: Report, html: Path | None, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    from trtkit.cli.tables import show
    from trtkit.report.verification_tables import verify_tables

    show(verify_tables(report))
    if html is not None:
        say(f"wrote {html}")
