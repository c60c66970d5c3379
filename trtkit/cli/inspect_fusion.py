"""`trtkit inspect --fusion`: the kernels that a bundle's layers became."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from trtkit.cli.options import check_page, page_origin
from trtkit.cli.say import say
from trtkit.files import write_output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.network.fusion import Fusion
    from trtkit.report.fusion import LayerMeasurements


def show_fusion(bundle: Bundle, html: Path | None, measured: Sequence[Path], *, as_json: bool, quiet: bool) -> None:
    """Print which layers became which kernels; `html`: write a page, too. measured: JSON files of verify and bench."""
    from trtkit.builder.fusion import bundle_fusions
    from trtkit.cli.progress import show_progress

    check_page(html)
    reports = [read_layers(path) for path in measured]
    with show_progress(quiet=quiet or as_json) as runner:
        results = list(bundle_fusions(bundle, runner))
    fusions = [fusion for fusion, _ in results]
    if html is not None:
        from trtkit.report.fusion import fusion_page

        # Of a language model's bundle, the model alone is measured; other networks have layers of the same names.
        stages = bundle.manifest.stages[-1:] if bundle.manifest.decoder is not None else bundle.manifest.stages
        names = {stage.name for stage in stages}
        chosen = [
            (fusion, [layer.name for layer in network.layers]) for fusion, network in results if fusion.stage in names
        ]
        check_layers(reports, chosen)
        marks = [measured_of(reports if fusion.stage in names else (), fusion) for fusion in fusions]
        write_output(html, fusion_page(bundle.manifest.name, results, marks, page_origin(bundle)))
    if as_json:
        click.echo(json.dumps({"kind": "fusion", "fusions": [asdict(fusion) for fusion in fusions]}))
        return
    from trtkit.cli.tables import show
    from trtkit.report.fusion_tables import fusion_tables

    show(table for fusion in fusions for table in fusion_tables(fusion))
    if html is not None:
        say(f"wrote {html}")


_WRITE = "write one by `trtkit verify BUNDLE --layers --json` or `trtkit bench BUNDLE --save FILE`"


@dataclass(frozen=True)
class TimedLayers:
    """The layers of one call. phase: `prefill` or `decode` for a language model. shapes: of a vision model's inputs.

    Layers that were timed together share the time.
    """

    phase: str
    shapes: dict[str, tuple[int, ...]]
    times_ms: dict[str, float]


@dataclass(frozen=True)
class LayerReport:
    """A report's errors by layer, and its calls in their order."""

    path: Path
    errors: dict[str, float]
    calls: tuple[TimedLayers, ...]


def read_layers(path: Path) -> LayerReport:
    """Return what a report has of layers. Raises UsageError for any other file."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--measured: {path} cannot be read: {error}") from None
    try:
        layers = report.get("layers") or ()
        errors = {layer["layer"]: float(layer["relative_rms_error"]) for layer in layers}
        calls = tuple(
            TimedLayers(
                phase["name"],
                {name: tuple(shape) for name, shape in case.get("shapes", {}).items()},
                {layer["layer"]: layer["ms"] / max(1, layer["layers"]) for layer in phase["layers"]},
            )
            for case in report.get("cases") or ()
            for phase in case.get("phases", ())
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        errors, calls = {}, ()
    if not errors and not calls:
        raise click.UsageError(f"--measured: {path} is not a report with layers; {_WRITE}")
    return LayerReport(path, {name: error for name, error in errors.items() if math.isfinite(error)}, calls)


def measured_of(reports: Sequence[LayerReport], fusion: Fusion) -> LayerMeasurements:
    """Return what reports say of a fusion's layers: of the calls, the one at its shapes, or else the first."""
    from trtkit.report.fusion import LayerMeasurements

    errors = {name: error for report in reports for name, error in report.errors.items()}
    times: dict[str, float] = {}
    for report in reports:
        calls = [call for call in report.calls if not fusion.phase or call.phase == fusion.phase]
        at_shapes = [call for call in calls if call.shapes == fusion.shapes]
        for call in (at_shapes or calls)[:1]:
            times |= call.times_ms
    return LayerMeasurements(errors, times)


def check_layers(reports: Sequence[LayerReport], fusions: Sequence[tuple[Fusion, Sequence[str]]]) -> None:
    """Refuse a report without a layer of these networks: it is of another bundle. Raises UsageError."""
    for report in reports:
        if not any(measured_of([report], fusion).knows(name) for fusion, names in fusions for name in names):
            raise click.UsageError(f"--measured: {report.path} has no layer of this bundle; {_WRITE}")
