"""`trtkit export`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from trtkit.cli.local_model import local_config
from trtkit.cli.model_options import model_argument, model_options, output_option
from trtkit.cli.options import json_option, quiet_option

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.builder.export import ExportFormat
    from trtkit.cli.model_options import Overrides

EPILOG = """\b
Examples:
  trtkit export llama --to tensorrt-llm --precision bf16 -o checkpoint
  trtkit export Qwen/Qwen3-8B --to tensorrt-llm --precision bf16 \\
      --set parallel.tensor=4 --set parallel.pipeline=2
  trtkit quantize llama --method fp8 --calib book.txt -o llama-fp8
  trtkit export llama-fp8 --to tensorrt-llm --precision fp16 --requantize

\b
TensorRT-LLM 1.0 to 1.2 build an engine of the folder:
  trtllm-build --checkpoint_dir checkpoint --output_dir engine"""


@click.command(epilog=EPILOG)
@model_argument(bundles=False)
@click.option("--to", type=click.Choice(["tensorrt-llm"]), required=True, help="Format of the checkpoint.")
@click.option(
    "--requantize",
    is_flag=True,
    help="Round queries, keys and values in fp8 to one scale if theirs differ, instead of refusing them.",
)
@output_option("Output folder.  [default: exported/NAME-tensorrt-llm]", file_okay=False)
@model_options
@json_option
@quiet_option
def command(
    path: str,
    to: ExportFormat,
    requantize: bool,
    out: Path | None,
    target: str | None,
    overrides: Overrides,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write a language model as a TensorRT-LLM checkpoint.

    MODEL is a config's name or YAML file, a .gguf file, a folder that transformers, ModelOpt or TensorRT-LLM saved, or
    a hub id. Weights are written in --precision; quantized layers keep their codes. Models that the format cannot
    represent exactly are refused.
    """
    from trtkit.builder.export import export_model
    from trtkit.cli.progress import show_progress

    config = local_config(path, overrides, target)
    with show_progress(quiet=quiet or as_json) as runner:
        result = export_model(config, to, out, runner, requantize=requantize)
    if as_json:
        click.echo(json.dumps(result.to_json()))
        return
    from rich.text import Text

    from trtkit.cli.tables import console

    console().print(Text.assemble(("exported", "bold green"), f" {result}"), soft_wrap=True)
