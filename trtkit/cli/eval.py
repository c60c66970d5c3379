"""`trtkit eval`."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.options import bundle_argument, json_option, quiet_option
from trtkit.jobs.events import Phase, Progress

if TYPE_CHECKING:
    from trtkit.cli.llm_options import Model
    from trtkit.jobs.runner import Runner
    from trtkit.runtime.decoder import DecoderExecution

EPILOG = """\b
Examples:
  trtkit eval bundles/llama --perplexity book.txt
  trtkit eval bundles/llama --perplexity book.txt --windows 0 --json
  trtkit eval bundles/llama-int8 --compare bundles/llama --perplexity book.txt
  trtkit eval bundles/llama-int8 --compare bundles/llama --questions"""


@click.command(epilog=EPILOG)
@bundle_argument
@click.option("--perplexity", "text", metavar="FILE", help="A UTF-8 text to read.")
@click.option("--questions", "asks", is_flag=True, help="Ask 16 questions whose answers can be checked.")
@click.option("--compare", "base", metavar="BUNDLE", help="The model as it was: how far from it this one is.")
@click.option(
    "--windows", type=click.IntRange(0), default=8, metavar="N", help="Windows to read; 0: all.  [default: 8]"
)
@click.option("--window-tokens", type=click.IntRange(2), default=512, metavar="N", help="[default: 512]")
@click.option("--runtime", type=click.Choice(["auto", "tensorrt", "reference"]), default="auto", help="What runs it.")
@json_option
@quiet_option
def command(
    bundle: str,
    text: str | None,
    asks: bool,
    base: str | None,
    windows: int,
    window_tokens: int,
    runtime: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Evaluate a language model: its perplexity per token on a text, and what quantization cost it.

    The text is read in windows, each on its own, as `trtkit verify --text` does. A bundle whose engine gives only the
    last token's logits (`llm.logits: last`, the default) is read by the reference executor on the same network.
    `--compare` reads the same windows by another bundle, such as the one that was quantized. `--questions` asks both
    the
    same short questions, since a model can keep its perplexity and lose its answers.
    """
    from trtkit.bundle.bundle import open_bundle
    from trtkit.cli.llm_options import read_model
    from trtkit.cli.progress import show_progress

    if text is None and not asks:
        raise click.UsageError("name a text to read, `--perplexity FILE`, or ask `--questions`")
    models = [read_model(path) for path in (bundle, base) if path is not None]
    pieces = [] if text is None else _same_windows(Path(text), models, window_tokens)
    pieces = pieces[: windows or len(pieces)]
    with show_progress(quiet=quiet or as_json) as runner:
        runner.report(Phase("open"))
        executions = [_execution(model, runtime) for model in models]
        found: dict[str, Any] = {"text": text, "runtime": executions[0].description}
        found |= _measure(executions, pieces, runner) if pieces else {}
        found |= {"questions": _ask(executions, models, runner)} if asks else {}
    if base is not None:
        sizes = [open_bundle(model.path).engine_path().stat().st_size for model in models]
        engines = {"bundle": base, "engine_bytes": sizes[1], "own_engine_bytes": sizes[0]}
        found["compared"] = found.get("compared", {}) | engines
    if as_json:
        click.echo(json.dumps(found))
    else:
        _render(found)


def _same_windows(path: Path, models: list[Model], window_tokens: int) -> list[list[int]]:
    """Return the text's windows, which all models must read alike."""
    size = min(window_tokens, *(model.max_length for model in models))
    pieces, *others = [_windows(path, model, size) for model in models]
    if any(other != pieces for other in others):
        raise click.UsageError("--compare: the bundles' tokenizers differ, so perplexities per token do")
    return pieces


def _ask(executions: list[DecoderExecution], models: list[Model], runner: Runner) -> dict[str, Any]:
    """Return the first model's answers, how many are right, and how many of the second's."""
    from dataclasses import asdict

    from trtkit.verification.questions import ask

    runner.report(Phase("questions"))
    pairs = zip(executions, models, strict=True)
    answers, *others = [ask(execution, _tokenizer(model)) for execution, model in pairs]
    right, *compared = [sum(answer.is_right for answer in side) for side in (answers, *others)]
    found = {"right": right, "of": len(answers), "answers": [asdict(answer) for answer in answers]}
    return {**found, "compared_right": compared[0]} if compared else found


def _tokenizer(model: Model) -> Any:
    """Return a bundle's tokenizer. Raises GenerationError if it has none."""
    from trtkit.errors import GenerationError

    if model.tokenizer is None:
        what, fix = "the bundle has no tokenizer", "build it from a source that has one"
        raise GenerationError(what, str(model.path), fix)
    return model.tokenizer


def _windows(path: Path, model: Model, size: int) -> list[list[int]]:
    """Return the text's tokens in windows of `size`; a shorter rest is left out. Raises GenerationError."""
    from trtkit.errors import GenerationError

    tokenizer = _tokenizer(model)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GenerationError(f"the text cannot be read: {reason}", str(path), "give a UTF-8 text file") from None
    ids = tokenizer.encode(text)
    if len(ids) < 2:
        raise GenerationError(f"the text has {len(ids)} tokens, two are the least", str(path), "give a longer text")
    size = min(size, len(ids))
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]


def _execution(model: Model, runtime: Any) -> DecoderExecution:
    """Open the model so that it gives the logits of every token."""
    from trtkit.bundle.bundle import open_bundle
    from trtkit.engine.decoders import llm_options
    from trtkit.errors import GenerationError
    from trtkit.runtime.decoder import ReferenceDecoder, open_execution
    from trtkit.runtime.decoder.network import bundle_network

    bundle = open_bundle(model.path)
    if llm_options(bundle.manifest.config).logits == "all":
        return open_execution(bundle, runtime, 1)
    if runtime == "tensorrt":
        what = "the engine gives the logits of the last token only"
        raise GenerationError(what, str(model.path), "build with `--set llm.logits=all`, or use `--runtime reference`")
    return ReferenceDecoder(bundle_network(bundle, has_all_logits=True), 1)


def _measure(executions: list[DecoderExecution], pieces: list[list[int]], runner: Runner) -> dict[str, Any]:
    """Return the first model's perplexity over windows of one length, and its distance from the second's."""
    from trtkit.verification.perplexity import read_window

    started, losses, distances = time.monotonic(), [], []
    for index, ids in enumerate(pieces):
        runner.report(Progress("perplexity", index, len(pieces)))
        read = read_window(executions, ids)
        losses.append(read.losses)
        distances.append((read.divergence, read.same))
    seconds, tokens = time.monotonic() - started, sum(map(len, pieces))
    perplexities = [math.exp(sum(column) / len(pieces)) for column in zip(*losses, strict=True)]
    found = {
        "perplexity": perplexities[0],
        "windows": len(pieces),
        "window_tokens": len(pieces[0]),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": len(executions) * tokens / seconds,
    }
    if len(executions) == 1:
        return found
    divergence, same = (sum(column) / len(pieces) for column in zip(*distances, strict=True))
    change = perplexities[0] / perplexities[1] - 1
    compared = {"perplexity": perplexities[1], "change": change, "divergence_nats": divergence, "same_tokens": same}
    return found | {"compared": compared}


def _render(found: dict[str, Any]) -> None:
    from trtkit.cli.tables import console, pairs

    table, other = pairs(), found.get("compared", {})
    if "perplexity" in found:
        table.add_row("perplexity", f"{found['perplexity']:.4f}")
    if "perplexity" in other:
        table.add_row("compared with", f"{other['bundle']}: perplexity {other['perplexity']:.4f}")
        table.add_row("change", f"{other['change']:+.2%}, {other['divergence_nats']:.4f} nats a token")
        table.add_row("same next token", f"{other['same_tokens']:.1%}")
    if "questions" in found:
        _add_questions(table, found["questions"])
    if other:
        sizes = [other[key] / 2**20 for key in ("own_engine_bytes", "engine_bytes")]
        table.add_row("engine", f"{sizes[0]:.1f} MiB for {sizes[1]:.1f} MiB")
    if "perplexity" in found:
        table.add_row("text", f"{found['text']}: {found['windows']} windows of {found['window_tokens']} tokens")
    table.add_row("runtime", found["runtime"])
    if "perplexity" in found:
        table.add_row("tokens/s", f"{found['tokens_per_second']:.1f}")
    console().print(table)


def _add_questions(table: Any, questions: dict[str, Any]) -> None:
    """Show how many answers are right, and those that are not."""
    other = f", {questions['compared_right']} before" if "compared_right" in questions else ""
    table.add_row("answers", f"{questions['right']} of {questions['of']} right{other}")
    for answer in (each for each in questions["answers"] if not each["is_right"]):
        table.add_row("", f"{answer['question']} {answer['text']!r}")
