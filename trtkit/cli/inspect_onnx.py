"""`trtkit inspect --onnx`: a bundle's network as an ONNX file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from trtkit.cli.options import check_outputs
from trtkit.cli.say import say
from trtkit.errors import BundleError, TrtkitError

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle

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
