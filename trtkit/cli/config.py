"""`trtkit config`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli import completions
from trtkit.cli.model_options import override_options
from trtkit.cli.options import RenamedOption, json_option, run_options
from trtkit.cli.visible import echo

if TYPE_CHECKING:
    from trtkit.cli.model_options import Overrides

EPILOG = """\b
Examples:
  trtkit config init model.onnx --save model.yaml
  trtkit config init ~/models/Qwen3-0.6B
  trtkit config validate model.yaml
  trtkit config validate qwen3 --set llm.max_batch_size=16 --json
  trtkit config schema --save trtkit.schema.json"""

_save_option = click.option(
    "--save",
    cls=RenamedOption,
    old=["--output", "-o"],
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write.  [default: stdout]",
)


@click.group(epilog=EPILOG)
def command() -> None:
    """Write, check and describe configs."""


@command.command()
@click.argument("source", shell_complete=completions.networks)
@_save_option
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@json_option
@run_options
def init(source: str, save: Path | None, force: bool, as_json: bool) -> None:
    """Write a commented config for SOURCE.

    SOURCE is an .onnx or .gguf file, a folder that transformers or TensorRT-LLM saved, or the name of a shipped config.
    """
    from trtkit.builder.starter import starter_config

    if save is not None and save.exists() and not force:
        raise click.UsageError(f"`{save}` already exists; choose another file or add --force")
    text = starter_config(source, Path() if save is None else save.parent)
    _write(text, save, as_json=as_json)


@command.command()
@click.argument("config", metavar="FILE", shell_complete=completions.configs)
@override_options
@json_option
@run_options
def validate(config: str, target: str | None, overrides: Overrides, as_json: bool) -> None:
    """Check a config and list all of its errors.

    FILE is a YAML file, or the name of a shipped config. If the model is there, keys that do not apply to it are errors
    too. Exits with 2 if the config is not valid.
    """
    from trtkit.config import load_config
    from trtkit.config.targets import load_target
    from trtkit.resolve import resolve

    model = load_config(config, overrides, target)
    load_target(model.target)
    resolve(model)
    if as_json:
        click.echo(json.dumps({"valid": True, "config": model.model_dump(mode="json")}))
    else:
        echo(f"{config}: valid")


@command.command()
@_save_option
@json_option
@run_options
def schema(save: Path | None, as_json: bool) -> None:
    """Print the JSON schema of configs, for editors that check YAML."""
    from trtkit.config import ModelConfig

    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "trtkit config"}
    text = json.dumps({**ModelConfig.model_json_schema(), **draft}, indent=2) + "\n"
    if save is None:
        click.echo(text, nl=False)
    else:
        _write(text, save, as_json=as_json)


def _write(text: str, save: Path | None, *, as_json: bool) -> None:
    from trtkit.files import write_output

    if save is not None:
        write_output(save, text)
    if as_json:
        click.echo(json.dumps({"path": save and str(save), "text": text}))
    elif save is None:
        echo(text, nl=False)
    else:
        echo(f"wrote {save}")
