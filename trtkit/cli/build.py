"""`trtkit build`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli import completions
from trtkit.cli.local_model import local_config, local_model
from trtkit.cli.model_options import model_argument, model_options, output_option
from trtkit.cli.options import json_option, quiet_option
from trtkit.report.tables import Lines, Part, Table, named

if TYPE_CHECKING:
    from trtkit.builder.build import BuildResult
    from trtkit.builder.presets import ChosenPreset, Preset
    from trtkit.cli.model_options import Overrides
    from trtkit.config.schema import ModelConfig


EPILOG = """\b
Examples:
  trtkit build efficientnet-lite0
  trtkit build model.onnx --shapes images:1x3x64x64,8x3x64x64,32x3x64x64
  trtkit build Qwen/Qwen3-0.6B --preset chat
  trtkit build model.gguf --set llm.max_batch_size=4
  trtkit build my.yaml --target sm89 --json"""


@click.command(epilog=EPILOG)
@model_argument(required=False, bundles=False)
@click.option("-c", "--config", metavar="MODEL", help="Same as MODEL.", shell_complete=completions.configs)
@output_option("Folder for the bundle.  [default: bundles/NAME]")
@model_options
@click.option(
    "--preset",
    type=click.Choice(["chat", "throughput", "long"]),
    help="For language models: defaults for a purpose, for keys that neither the config nor --set sets.",
)
@click.option("--no-cache", is_flag=True, help="Build even if the result is cached.")
@json_option
@quiet_option
def command(
    path: str | None,
    config: str | None,
    out: Path | None,
    target: str | None,
    overrides: Overrides,
    preset: Preset | None,
    no_cache: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build an engine bundle from a model or a config.

    MODEL is a config's name or YAML file, an .onnx or .gguf file, a folder that transformers or TensorRT-LLM saved, or
    the id of a model on Hugging Face's hub, which is downloaded first.
    The bundle holds the engine, its network and a manifest. Repeating a build restores it from the cache.
    """
    from trtkit.builder.build import build_bundle
    from trtkit.cli.progress import show_progress

    model = local_config(local_model(_one_model(path, config)), overrides, target)
    if preset is not None:
        model = _chosen(model, preset, is_shown=not (quiet or as_json))
    with show_progress(quiet=quiet or as_json) as runner:
        result = build_bundle(model, out or Path("bundles") / model.name, runner, use_cache=not no_cache)
    if as_json:
        click.echo(json.dumps({"origin": result.origin, "path": str(result.bundle.path), **_manifest(result)}))
    else:
        _render(result)


def _chosen(model: ModelConfig, name: Preset, *, is_shown: bool) -> ModelConfig:
    """Return the config with the preset applied, and show its decisions in full before the build starts."""
    from trtkit.builder.presets import with_preset
    from trtkit.cli.build import preset_tables
    from trtkit.cli.tables import show

    chosen = with_preset(model, name)
    if is_shown:
        show(preset_tables(chosen))
    return chosen.config


def _one_model(path: str | None, config: str | None) -> str:
    """Return the model, given as an argument or an option. Raises UsageError."""
    models = [model for model in (path, config) if model is not None]
    if len(models) == 1:
        return models[0]
    raise click.UsageError("MODEL and --config are the same: give one" if models else "Missing argument 'MODEL'.")


def _manifest(result: BuildResult) -> dict[str, object]:
    return {"manifest": result.bundle.manifest.model_dump(mode="json")}


def _render(result: BuildResult) -> None:
    """Print what was built in one table, or that the bundle is unchanged."""
    from rich.text import Text

    from trtkit.backends import list_gpus, refused_gpus
    from trtkit.cli.tables import console, show
    from trtkit.report.models import bundle_summary

    words = {
        "built": "built",
        "restored": "restored (cache hit):",
        "unchanged": "up to date (cache hit):",
    }
    outcome = Text.assemble((words[result.origin], "bold green"), f" {result.bundle.path}")
    console().print(outcome, soft_wrap=True)
    show([bundle_summary(result.bundle)])
    present = list_gpus()
    if refusal := refused_gpus(result.bundle.manifest.backend.name, present):
        console().print(f"note: {', '.join(gpu.name for gpu in present)} {refusal}", soft_wrap=True, highlight=False)


_ORIGINS = {"preset": "preset", "model": "model", "config": "config"}


def preset_tables(chosen: ChosenPreset) -> list[Part]:
    """Return tables of every decision and its meaning, and of keys that do not apply to the model."""
    rows = [(row.key, _text(row.value), _ORIGINS[row.origin], row.meaning) for row in chosen.decisions]
    title = f"preset {chosen.name}: decided when the engine is built; --set KEY=VALUE changes any"
    parts: list[Part] = [Table(title, (*named("key", "value", kind="name"), *named("from", "meaning")), rows)]
    if chosen.left_out:
        parts.append(Lines("does not apply", [f"{key}: {why}" for key, why in chosen.left_out]))
    return parts


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
