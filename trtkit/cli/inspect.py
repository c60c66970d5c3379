"""`trtkit inspect`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli.model_options import model_argument, model_options, read_model
from trtkit.cli.options import check_outputs, check_page, json_option, page_origin, quiet_option
from trtkit.cli.say import say
from trtkit.errors import BundleError, TrtkitError
from trtkit.files import scratch_folder, write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import ModelRecord
    from trtkit.cli.model_options import Overrides
    from trtkit.config.schema import ModelConfig
    from trtkit.network.fusion import Fusion
    from trtkit.network.record import NetworkRecord
    from trtkit.report.fusion import LayerMeasurements


FILE = click.Path(path_type=Path, dir_okay=False)
EPILOG = """\b
Examples:
  trtkit inspect model.onnx
  trtkit inspect ppocr-rec --precision fp16
  trtkit inspect bundles/efficientnet-lite0 --layers
  trtkit inspect bundles/llama --fusion --html kernels.html
  trtkit inspect bundles/llama --onnx llama.onnx"""


@click.command(epilog=EPILOG)
@model_argument()
@model_options
@click.option("--layers", is_flag=True, help="List every layer.")
@click.option("--fusion", is_flag=True, help="Build a bundle's networks again to list their kernels.")
@click.option("--html", type=FILE, help="Write a page; with --fusion, one with the network as a graph.")
@click.option("--measured", type=FILE, multiple=True, help="With --fusion --html: JSON of verify or bench to color by.")
@click.option("--onnx", type=FILE, help="Write a bundle's network, layer by layer, as an ONNX file.")
@click.option("--stage", metavar="NAME", help="With --onnx: the network to write if the bundle has several.")
@json_option
@quiet_option
def command(
    path: str,
    target: str | None,
    overrides: Overrides,
    layers: bool,
    fusion: bool,
    html: Path | None,
    measured: tuple[Path, ...],
    onnx: Path | None,
    stage: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show an ONNX file, a config's network before building, or a bundle.

    MODEL is a bundle, a config's name or YAML file, an .onnx or .gguf file, a folder that transformers or TensorRT-LLM
    saved, or a hub id. FLOPs, bytes and sizes are counted at the `opt` shapes.

    --fusion shows which layers of a bundle became which kernels of its engine,
    and the bytes that fusing saves. No GPU is needed.

    --onnx writes what the engine is built from, with each tensor under its name,
    so that ONNX Runtime can compute any of them. Weights above 512 MiB go to
    FILE.data. Layers that ONNX cannot express are named.
    """
    if measured and (html is None or not fusion):
        raise click.UsageError("--measured goes with --fusion and --html")
    if stage is not None and onnx is None:
        raise click.UsageError("--stage goes with --onnx")
    if fusion and onnx is not None:
        raise click.UsageError("--onnx does not go with --fusion")
    if onnx is not None:
        _write_onnx(read_model(path, overrides, target), onnx, stage, as_json=as_json)
        return
    if fusion:
        _show_fusion(read_model(path, overrides, target), html, measured, as_json=as_json, quiet=quiet)
        return
    _show_model(read_model(path, overrides, target), html, every_layer=layers, as_json=as_json, quiet=quiet)


def _show_model(
    opened: Bundle | ModelConfig, html: Path | None, *, every_layer: bool, as_json: bool, quiet: bool
) -> None:
    """Print what a model holds; `html`: write its page, too."""
    from trtkit.cli.tables import show
    from trtkit.report.models import Inspected, inspect_tables, model_page

    check_page(html)
    kind, backend, model, network = _record(opened, quiet=quiet or as_json)
    inspected = Inspected(kind, model, network)
    if html is not None:
        write_output(html, model_page(inspected, page_origin()))
    if as_json:
        described = model.model_dump(mode="json")
        fields = {"manifest": described} if kind == "bundle" else {"backend": backend, **described}
        shown = {"kind": kind, **fields, "network": network.to_json(), "quantized": inspected.quantized()}
        click.echo(json.dumps(shown))
        return
    show(inspect_tables(inspected, every_layer=every_layer))
    if html is not None:
        say(f"wrote {html}")


def _show_fusion(
    model: Bundle | ModelConfig, html: Path | None, measured: tuple[Path, ...], *, as_json: bool, quiet: bool
) -> None:
    from trtkit.bundle.bundle import Bundle

    if not isinstance(model, Bundle):
        raise click.UsageError("--fusion needs a bundle: only an engine has kernels; run `trtkit build` first")
    show_fusion(model, html, measured, as_json=as_json, quiet=quiet)


def _write_onnx(model: Bundle | ModelConfig, file: Path, stage: str | None, *, as_json: bool) -> None:
    from trtkit.bundle.bundle import Bundle

    if not isinstance(model, Bundle):
        raise click.UsageError("--onnx needs a bundle, which holds the network's layers; run `trtkit build` first")
    write_stage(model, file, stage, as_json=as_json)


def _record(model: Bundle | ModelConfig, *, quiet: bool) -> tuple[str, str, ModelRecord, NetworkRecord]:
    """Return a bundle's records, or those of a config's network before the build."""
    from trtkit.bundle.bundle import Bundle

    if not isinstance(model, Bundle):
        return _network(model, quiet=quiet)
    model.check_files()
    return "bundle", model.manifest.backend.name, model.manifest, model.network_record()


def _network(config: ModelConfig, *, quiet: bool) -> tuple[str, str, ModelRecord, NetworkRecord]:
    """Prepare and parse the config's model in a temporary folder."""

    from trtkit.builder.build_inputs import gather_inputs
    from trtkit.builder.model_record import joint_network, model_record
    from trtkit.builder.write_stages import write_stages
    from trtkit.cli.progress import show_progress

    with scratch_folder() as folder, show_progress(quiet=quiet) as runner:
        inputs = gather_inputs(config, runner)
        written = write_stages(inputs, folder, runner, builds=False)
        record = model_record(inputs, written, folder)
    return "network", inputs.backend, record, joint_network(inputs.model, written)


_WITHOUT_PLUGINS = "build it with `custom_ops.plugins: never` to write it"


def write_stage(bundle: Bundle, file: Path, stage: str | None, *, as_json: bool) -> None:
    """Write the network of a stage, by default the only one, to `file`. Raises UsageError, BundleError, TrtkitError."""
    check_outputs(file)
    names = [record.name for record in bundle.manifest.stages]
    if stage is None and len(names) > 1:
        raise click.UsageError(f"--onnx writes one network; choose it by --stage: {', '.join(names)}")
    if stage is not None and stage not in names:
        raise click.UsageError(f"--stage: the bundle has no stage `{stage}`; it has {', '.join(names)}")
    name = stage or names[0]
    if ranks := bundle.manifest.stage(name).ranks:
        what = f"the network is split over {len(ranks)} ranks, which one ONNX file cannot express"
        raise BundleError(what, str(bundle.path), "build it without `parallel` to write it")
    layers = bundle.layers(name)
    if layers is None:
        raise BundleError(
            "the network has plugins, which ONNX has no operators for", str(bundle.path), _WITHOUT_PLUGINS
        )
    from trtkit.network.onnx.from_layers import write_onnx

    try:
        written = write_onnx(layers, file)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TrtkitError(f"cannot be written: {reason}", str(file), "choose a writable folder with space") from None
    if as_json:
        paths = [str(path) for path in written]
        click.echo(json.dumps({"kind": "onnx", "stage": name, "layers": len(layers.nodes), "files": paths}))
        return
    say(f"wrote {' and '.join(str(path) for path in written)}: {len(layers.nodes)} layers")


def show_fusion(bundle: Bundle, html: Path | None, measured: Sequence[Path], *, as_json: bool, quiet: bool) -> None:
    """Print the layers of each kernel; `html`: also write a page. measured: JSON files of verify and bench."""
    from trtkit.builder.fusion import bundle_fusions
    from trtkit.cli.progress import show_progress

    check_page(html)
    reports = [read_layers(path) for path in measured]
    with show_progress(quiet=quiet or as_json) as runner:
        results = list(bundle_fusions(bundle, runner))
    fusions = [fusion for fusion, _ in results]
    if html is not None:
        from trtkit.report.fusion import fusion_page

        # In a language model's bundle, only the model is measured; other networks have layers with the same names.
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
    """Measured layers of one call. phase: `prefill` or `decode` for a language model.

    shapes: of a vision model's inputs. Layers that were timed together share the time.
    """

    phase: str
    shapes: dict[str, tuple[int, ...]]
    times_ms: dict[str, float]


@dataclass(frozen=True)
class LayerReport:
    """A report's errors by layer, and its calls in order."""

    path: Path
    errors: dict[str, float]
    calls: tuple[TimedLayers, ...]


def read_layers(path: Path) -> LayerReport:
    """Return the layers of a report. Raises UsageError for any other file."""
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
    """Return the reports' measurements of a fusion's layers: from the call at its shapes, else the first call."""
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
    """Raise UsageError for a report without any layer of these networks: it belongs to another bundle."""
    for report in reports:
        if not any(measured_of([report], fusion).knows(name) for fusion, names in fusions for name in names):
            raise click.UsageError(f"--measured: {report.path} has no layer of this bundle; {_WRITE}")
