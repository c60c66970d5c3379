"""`trtkit quantize`."""

from __future__ import annotations

import json
import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from trtkit.cli import completions
from trtkit.cli.local_model import local_config
from trtkit.cli.model_options import model_argument, model_options, output_option
from trtkit.cli.options import check_outputs, check_page, json_option, page_origin, quiet_option
from trtkit.files import write_output
from trtkit.quantization_methods import LESS_LOSS, Block, CacheFormat, methods_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table
    from rich.text import Text

    from trtkit.builder.jobs import QuantizedVision
    from trtkit.builder.quantize import QuantizeResult
    from trtkit.cli.model_options import Overrides
    from trtkit.config.schema import ModelConfig
    from trtkit.quantization.scoring.report import Scores

_METHODS = f"Language models: {', '.join(methods_for('llm'))}. Vision models: {', '.join(methods_for('vision'))}."
EPILOG = f"""\b
Examples:
  trtkit quantize llama --method int8_wo -o smollm2-int8
  trtkit quantize llama --method int4_awq --block 32 --calib book.txt
  trtkit quantize llama --method fp8 --kv-cache int8 --calib book.txt
  trtkit quantize llama --method int4_awq --calib book.txt --sensitivity \\
      --html losses.html
  trtkit quantize llama --method fp8 --calib book.txt --budget 0.01nats \\
      --fallback int8_wo --write llama-fp8.yaml
  trtkit quantize llama --sparsity 2:4 --method fp8 --calib book.txt
  trtkit quantize efficientnet-lite0 --method int8 --calib photographs/
  trtkit build llama --set source.hf=quantized/llama-int8_wo

\b
{textwrap.fill(_METHODS, 78)}
With `quantize:` in a config, `trtkit build` does the same."""


@click.command(epilog=EPILOG)
@model_argument(bundles=False)
@click.option("--method", metavar="NAME", shell_complete=completions.methods, help="Quantization method; see below.")
@click.option("--calib", metavar="PATH", help="Calibration data: text, images or .npz.")
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Calibration samples.  [default: 32]")
@click.option("--block", type=click.Choice([str(size) for size in get_args(Block)]), help="Block size of int4 scales.")
@click.option("--kv-cache", type=click.Choice(get_args(CacheFormat)), help="Quantize the KV cache of an LLM.")
@click.option(
    "--layer", "layers", multiple=True, metavar="GLOB=NAME", help="Use another method for matching layers; repeatable."
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="Do not quantize matching layers or ONNX nodes.")
@click.option("--sparsity", type=click.Choice(["2:4"]), help="Prune an LLM's linear layers by SparseGPT first.")
@click.option("--sensitivity", is_flag=True, help="Measure the loss from each LLM layer on its own.")
@click.option(
    "--budget",
    metavar="AMOUNT",
    help="Skip the layers that lose most: `5.5bits` per weight, `80MiB` of linear layers or `0.02nats` of loss.",
)
@click.option(
    "--fallback",
    metavar="NAME",
    shell_complete=completions.fallbacks,
    help="Method for the layers that --budget skips, e.g. int8_wo.",
)
@click.option(
    "--write", type=click.Path(path_type=Path, dir_okay=False), help="Write a config with the chosen methods."
)
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write an HTML page with the loss per layer."
)
@output_option("Output folder.  [default: quantized/NAME-METHOD]")
@model_options
@json_option
@quiet_option
def command(
    path: str,
    method: str | None,
    calib: str | None,
    samples: int | None,
    block: str | None,
    kv_cache: str | None,
    layers: tuple[str, ...],
    exclude: tuple[str, ...],
    sparsity: str | None,
    sensitivity: bool,
    budget: str | None,
    fallback: str | None,
    write: Path | None,
    html: Path | None,
    out: Path | None,
    target: str | None,
    overrides: Overrides,
    as_json: bool,
    quiet: bool,
) -> None:
    """Quantize a model's weights, activations and KV caches.

    MODEL is a config's name or YAML file, an .onnx or .gguf file, a folder that transformers or TensorRT-LLM saved,
    or a hub id.
    Writes a ModelOpt checkpoint for a language model, or an ONNX file with Q/DQ nodes for a vision model. Both build
    like any other source. Measure the loss without a GPU by `trtkit verify` and `trtkit eval`.
    """
    from trtkit.builder.quantize import quantize_model
    from trtkit.cli.progress import show_progress
    from trtkit.quantization.jobs import ScoringRequest

    check_outputs(write)
    check_page(html)
    keys = {"method": method, "block": block, "kv_cache": kv_cache, "calibration.data": calib}
    keys["sparsity"] = sparsity
    keys |= {"calibration.samples": None if samples is None else str(samples)}
    model = _loaded(path, keys, layers, exclude, overrides, target)
    with show_progress(quiet=quiet or as_json) as runner:
        scoring = ScoringRequest(sensitivity or html is not None, budget, fallback)
        result = quantize_model(model, out, runner, scoring)
    scores = result.sensitivity
    if write is not None:
        write_output(write, _with_choice(model, () if scores is None else scores.kept, fallback))
    if html is not None and scores is not None:
        from trtkit.report.sensitivity import sensitivity_page

        write_output(html, sensitivity_page(model.name, scores, page_origin()))
    if as_json:
        click.echo(json.dumps({"path": str(result.path), **result.to_json()}))
    else:
        _render(result, [path, *(["--target", target] if target else [])])


def _loaded(
    path: str,
    keys: dict[str, str | None],
    layers: tuple[str, ...],
    exclude: tuple[str, ...],
    overrides: Overrides,
    target: str | None,
) -> ModelConfig:
    """Return the config with the options applied."""
    settings = [f"quantize.{key}={value}" for key, value in keys.items() if value is not None]
    if layers:
        methods = dict(_parted(pair) for pair in layers)
        settings.append(f"quantize.layers={json.dumps(methods)}")
    if exclude:
        settings.append(f"quantize.exclude={json.dumps(list(exclude))}")
    return local_config(path, (*settings, *overrides), target)


def _parted(pair: str) -> tuple[str, str]:
    """Return the two sides of GLOB=NAME. Raises ConfigError."""
    from trtkit.errors import ConfigError, Problem

    glob, equals, name = pair.rpartition("=")
    if not equals:
        problem = Problem(f"`{pair}` is not GLOB=NAME", "--layer", "write it as `*.mlp.down=fp8`")
        raise ConfigError("no such layers", [problem])
    return glob, name


def _render(result: QuantizeResult, config: list[str]) -> None:
    """Print the result and the next steps. config: with the target, as for a build."""
    from rich.text import Text

    from trtkit.builder.jobs import QuantizedVision
    from trtkit.cli.tables import console

    size = result.size_bytes / 2**20
    if result.sensitivity is not None:
        console().print(_losses(result.sensitivity))
    console().print(Text.assemble(("quantized", "bold green"), f" {result.path}, {size:.1f} MiB"), soft_wrap=True)
    if isinstance(result.quantized, QuantizedVision):
        console().print(_loss(result.quantized), soft_wrap=True)
    ((key, source),) = result.source.items()
    words = ["trtkit", "build", *config, "--set", f"source.{key}={source}"]
    console().print(f"next: {shlex.join(words)}", soft_wrap=True)


def _loss(quantized: QuantizedVision) -> Text:
    """Return the finished model's loss on the calibration data, with advice if it is large."""
    from rich.text import Text

    if quantized.loss is None:
        return Text("loss: not measured without calibration data (`--calib`)")
    text = f"loss on the calibration data: {quantized.loss_text}"
    if quantized.loss <= _MUCH:
        return Text(text)
    return Text(f"{text}\nfix: {LESS_LOSS}", "yellow")


_SHOWN = 10
_MUCH = 0.1


def _losses(scores: Scores) -> Table:
    """Return a table of the layers with the most loss."""
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, title_justify="left", title="\nloss from quantizing one layer alone, nats per token"
    )
    for name, justify in (("layer", "left"), ("method", "left"), ("loss", "right"), ("", "left"), ("", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    rows, kept, left = scores.layers, set(scores.kept), scores.fallback or "kept"
    largest = max((row.loss for row in rows), default=0.0) or 1.0
    for row in rows[:_SHOWN]:
        bar = "\u2588" * max(1, round(16 * row.loss / largest))
        table.add_row(row.layer, row.method, f"{row.loss:.2e}", bar, left if row.layer in kept else "")
    together = len(rows) if scores.fallback else len(rows) - len(kept)
    table.add_row(f"{together} of {len(rows)} together", "", f"{scores.loss:.2e}", "", "", style="bold")
    return table


def _with_choice(config: ModelConfig, kept: Sequence[str], fallback: str | None) -> str:
    """Return the config as YAML with the layers left by a budget."""
    from trtkit.verification.fix import config_yaml

    assert config.quantize is not None
    options = config.quantize
    if fallback is None:
        options = options.model_copy(update={"exclude": (*options.exclude, *kept)})
    else:
        options = options.model_copy(update={"layers": options.layers | dict.fromkeys(kept, fallback)})
    return config_yaml(config.model_copy(update={"quantize": options}))
