"""`trtkit run`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli.local_model import bundle_argument, local_bundle
from trtkit.cli.model_options import output_option
from trtkit.cli.options import json_option, quiet_option
from trtkit.cli.serving_options import faults_by_flag, serving_option

if TYPE_CHECKING:
    from rich.progress import Progress

    from trtkit.runtime.model import RuntimeName
    from trtkit.runtime.predict import Answered
    from trtkit.serving_options import WeightBudget

EPILOG = """\b
Examples:
  trtkit run bundles/efficientnet-lite0 cat.jpg dog.jpg
  trtkit run bundles/yolo photos/ --output drawn
  trtkit run bundles/yolo street.mp4 --every 10 --json > boxes.jsonl
  trtkit run bundles/all-minilm-l6-v2 sentences.txt --json
  trtkit run bundles/model inputs.npz --output results

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 cancelled."""


@click.command(epilog=EPILOG)
@bundle_argument
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="INPUT...")
@output_option("Folder for drawn pictures and arrays.", file_okay=False)
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Items per call.  [default: the profile's opt]")
@click.option("--top-k", type=click.IntRange(1), default=5, metavar="N", help="Classes to show.  [default: 5]")
@click.option("--every", type=click.IntRange(1), default=1, metavar="N", help="Use every Nth frame of a video.")
@click.option(
    "--runtime",
    type=click.Choice(["auto", "tensorrt", "reference", "onnxruntime"]),
    default="auto",
    help="What computes: TensorRT if a GPU is present, else the reference executor.  [default: auto]",
)
@serving_option("weight_budget_gib")
@json_option
@quiet_option
def command(
    bundle: str,
    inputs: tuple[Path, ...],
    out: Path | None,
    batch: int | None,
    top_k: int,
    every: int,
    runtime: RuntimeName,
    weight_budget_gib: WeightBudget | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a model on pictures, videos, texts or arrays: files, folders of pictures, text files, .npz.

    Prints what the config's `task` reads from the outputs: classes, text, boxes, keypoints, a class or a depth for each
    pixel, or an embedding. With --json every input is one line. --output draws on the pictures and saves arrays.
    """
    from trtkit.cli.say import say
    from trtkit.cli.visible import echo
    from trtkit.report.pictures import write_answer
    from trtkit.runtime.model import open_model
    from trtkit.runtime.predict import VIDEOS, FileOptions, answer_files, input_files

    files = input_files(inputs)
    total = None if any(file.suffix.lower() in VIDEOS for file in files) else len(files)
    with faults_by_flag():
        model = open_model(local_bundle(bundle, interface="arrays"), runtime, weight_budget_gib=weight_budget_gib)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    started, count = time.monotonic(), 0
    with _progress(is_shown=not (quiet or as_json)) as progress:
        task = progress.add_task("run", total=total)
        for answered in answer_files(model.bundle, model.run, files, FileOptions(batch, top_k, every)):
            echo(_line(answered, as_json=as_json))
            if out is not None:
                write_answer(answered, out)
            count += 1
            progress.advance(task)
    if not quiet and not as_json:
        seconds = time.monotonic() - started
        rate = f"{count} input{'' if count == 1 else 's'} in {seconds:.1f} s, {count / seconds:.1f} per second"
        say(f"{rate}, {model.description}" + (f"; see {out}" if out else ""))


def _line(answered: Answered, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"input": answered.name, **answered.answer.to_json()}, ensure_ascii=False)
    return f"{answered.name}: {answered.answer}"


def _progress(*, is_shown: bool) -> Progress:
    """Return a bar on stderr for a terminal that does not get the answers themselves."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from trtkit.cli import visible

    is_seen = is_shown and sys.stderr.isatty() and not sys.stdout.isatty()
    console = visible.console(stderr=True, quiet=not is_seen)
    columns = (BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not is_seen, redirect_stdout=False)
