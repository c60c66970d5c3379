"""`trtkit check`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli import completions
from trtkit.cli.options import json_option, run_options
from trtkit.cli.visible import echo, visible

if TYPE_CHECKING:
    from trtkit.deployment.triton.check import ModelReport, ServerReport

EPILOG = """\b
Examples:
  trtkit check localhost:8000
  trtkit check http://localhost:8000 --bundle bundles/resnet50
  trtkit check grpc://gpu-7:8001 --model chat --bundle bundles/llama

\b
Without --bundle, lists the server's models and whether they are ready.
Streaming models are queried over gRPC.
Exit codes: 0 pass, 1 unreachable, not ready or failed, 2 wrong usage,
3 answers or interfaces differ."""

_EXIT_CODES = {"PASS": 0, "FAIL (not ready)": 1, "FAIL (differs from the bundle)": 3}


@click.command(epilog=EPILOG)
@click.argument("url")
@click.option("--model", metavar="NAME", help="Model to check.  [default: the bundle's name, or all]")
@click.option("--bundle", metavar="BUNDLE", help="Bundle to compare with.", shell_complete=completions.bundles)
@click.option("--protocol", type=click.Choice(["http", "grpc"]), help="Protocol if the URL has none.  [default: http]")
@click.option("--timeout", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Timeout in seconds.")
@json_option
@run_options
def command(url: str, model: str | None, bundle: str | None, protocol: Any, timeout: float, as_json: bool) -> None:
    """Check that a server serves a bundle correctly.

    Checks that the Triton server at URL is ready, compares names, types and shapes with BUNDLE, sends one request
    whose answer is stored in the bundle, and lists every difference.
    """
    from trtkit.deployment.triton.extra import require_extra

    require_extra()
    from trtkit.bundle.bundle import open_bundle
    from trtkit.deployment.triton.check import check_server
    from trtkit.runtime.triton_client import Client, parse_url

    address = parse_url(url, protocol)
    opened = None if bundle is None else open_bundle(bundle)
    with Client(address, timeout) as client:
        report = check_server(client, model, opened)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        _print(report)
    sys.exit(_EXIT_CODES[report.verdict])


def _print(report: ServerReport) -> None:
    echo(f"Triton {report.version} at {report.url}")
    for model in report.models:
        _print_model(model)
    if not report.models:
        echo("no models")


def _print_model(model: ModelReport) -> None:
    """Print a model: its tensors, and one line per difference."""
    if model.interface is None:
        echo(f"{model.name}  version {model.version}  {model.state.lower()}: {model.reason or 'not loaded'}")
        return
    interface = model.interface
    streams = ", streams its answers" if interface.is_decoupled else ""
    echo(f"{model.name}  version {model.version}  ready, batches up to {interface.max_batch_size}{streams}")
    for kind, tensors in (("input", interface.inputs), ("output", interface.outputs)):
        for tensor in tensors:
            echo(f"  {kind:6}  {tensor.name}  {tensor.dtype} {list(tensor.shape)}")
    if model.known:
        echo(f"  known request: {model.known}")
    for difference in model.differences:
        click.echo(f"  {click.style('differs:', fg='red')} {visible(difference)}")
