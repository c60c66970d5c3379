"""`trtkit inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli import completions
from trtkit.cli.options import json_option, quiet_option, set_option, target_option

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig
    from trtkit.network.record import NetworkRecord

EPILOG = """\b
Examples:
  trtkit inspect model.onnx
  trtkit inspect ppocr-rec --set precision=fp16
  trtkit inspect bundles/efficientnet-lite0 --layers"""


@click.command(epilog=EPILOG)
@click.argument("path", shell_complete=completions.networks)
@target_option
@set_option
@click.option("--layers", is_flag=True, help="List every layer.")
@json_option
@quiet_option
def command(
    path: str, target: str | None, overrides: tuple[str, ...], layers: bool, as_json: bool, quiet: bool
) -> None:
    """Show an ONNX file, a config's network before building, or a bundle.

    PATH is an .onnx file, a YAML file, the name of a shipped config, or a bundle's folder. FLOPs, bytes and sizes are
    counted at the `opt` shapes.
    """
    from trtkit.cli.models import model_config

    found = _bundle(path) or _network(model_config(path, overrides, target), quiet=quiet or as_json)
    found["quantized"] = _quantized(found.get("manifest", found)["config"], found["network"])
    if as_json:
        click.echo(json.dumps({**found, "network": found["network"].to_json()}))
        return
    from trtkit.cli.tables import inspect_tables, show

    show(inspect_tables(found, every_layer=layers))


def _bundle(path: str) -> dict[str, Any] | None:
    """Return what a bundle says of itself, None where `path` is none."""
    from trtkit.bundle.bundle import open_bundle
    from trtkit.cli.models import is_bundle_folder

    if not is_bundle_folder(path):
        return None
    bundle = open_bundle(Path(path))
    bundle.check_files()
    return {"kind": "bundle", "manifest": bundle.manifest.model_dump(mode="json"), "network": bundle.network_record()}


def _quantized(config: dict[str, Any], network: NetworkRecord) -> dict[str, Any] | None:
    """Return how a network is quantized: as its config asks, and as it is; None where it is not."""
    from trtkit.quantized_model import said

    asked, model = config.get("quantize"), network.quantization
    if asked is None and model is None:
        return None
    forms = [] if model is None else list(model.layers.values())
    return {
        "method": None if asked is None else _methods(asked),
        "blocks": sorted({form.block for form in forms if form.block}),
        "kv_cache": None if model is None else model.kv_cache,
        "layers": len(forms),
        "said": "" if model is None else said(model),
    }


def _methods(asked: dict[str, Any]) -> str:
    """Return the method that a config asks for, and those of its parts."""
    own = [] if asked["method"] == "none" and asked["parts"] else [asked["method"]]
    return ", ".join([*own, *(f"{name} {part['method']}" for name, part in asked["parts"].items())])


def _network(config: ModelConfig, *, quiet: bool) -> dict[str, Any]:
    """Prepare and parse the config's model in a temporary folder."""
    import tempfile

    from trtkit.cli.progress import show_progress
    from trtkit.engine.build import describe_network
    from trtkit.engine.plan import plan_build
    from trtkit.jobs.json_form import to_json

    with tempfile.TemporaryDirectory(prefix="trtkit-") as folder, show_progress(quiet=quiet) as runner:
        plan = plan_build(config, runner)
        described = describe_network(plan, Path(folder), runner)
    return {
        "kind": "network",
        "config": config.model_dump(mode="json"),
        "backend": plan.backend,
        "steps": to_json(described["steps"]),
        "profiles": to_json(described["profiles"]),
        "decoder": to_json(described.get("decoder")),
        "hybrid": described.get("hybrid"),
        "vision": described.get("vision"),
        "network": described["network"],
    }
