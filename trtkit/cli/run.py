"""`trtkit run`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli.local_model import bundle_argument, local_bundle
from trtkit.cli.model_options import output_option
from trtkit.cli.options import json_option, quiet_option
from trtkit.cli.serving_options import cancellable, faults_by_flag, serving_option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.progress import Progress

    from trtkit.runtime.model import Model, RuntimeName
    from trtkit.runtime.predict import Answered
    from trtkit.serving_options import WeightBudget

EPILOG = """\b
Examples:
  trtkit run bundles/efficientnet-lite0 cat.jpg dog.jpg
  trtkit run bundles/yolo photos/ --output drawn
  trtkit run bundles/yolo street.mp4 --output drawn --conf 0.4
  trtkit run bundles/yolo photos/ --predictions coco.json
  trtkit run bundles/yolo street.mp4 --every 10 --json > boxes.jsonl
  trtkit run bundles/all-minilm-l6-v2 sentences.txt --json
  trtkit run bundles/model inputs.npz --output results

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 cancelled."""


@click.command(epilog=EPILOG)
@bundle_argument
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="INPUT...")
@output_option("Folder for drawn pictures and videos, and arrays.", file_okay=False)
@click.option(
    "--predictions",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write all answers: JSON lines (.jsonl), or a detector's boxes in COCO's format (.json).",
)
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Items per call.  [default: the profile's opt]")
@click.option("--top-k", type=click.IntRange(1), default=5, metavar="N", help="Classes to show.  [default: 5]")
@click.option("--every", type=click.IntRange(1), default=1, metavar="N", help="Use every Nth frame of a video.")
@click.option(
    "--conf", type=click.FloatRange(0, 1), metavar="X", help="Smallest score of a box.  [default: the config's]"
)
@click.option(
    "--iou",
    type=click.FloatRange(0, 1),
    metavar="X",
    help="Overlap above which the weaker of two boxes of a class is dropped.  [default: the config's]",
)
@click.option(
    "--runtime",
    type=click.Choice(["auto", "tensorrt", "reference", "onnxruntime"]),
    default="auto",
    help="Runtime: TensorRT if a GPU is present, else the reference executor.  [default: auto]",
)
@serving_option("weight_budget_gib")
@json_option
@quiet_option
def command(
    bundle: str,
    inputs: tuple[Path, ...],
    out: Path | None,
    predictions: Path | None,
    batch: int | None,
    top_k: int,
    every: int,
    conf: float | None,
    iou: float | None,
    runtime: RuntimeName,
    weight_budget_gib: WeightBudget | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a model on pictures, videos, texts or arrays: files, folders of pictures, text files, .npz.

    Prints what the config's `task` reads from the outputs: classes, text, boxes, keypoints, a class or a depth for each
    pixel, or an embedding. With --json, each input is one line. --output draws on pictures and videos and saves arrays.
    """
    from trtkit.cli.visible import echo
    from trtkit.runtime.model import open_model
    from trtkit.runtime.pictures import VIDEOS, input_files
    from trtkit.runtime.predict import PredictOptions, answer_files
    from trtkit.runtime.tasks.reader import Thresholds

    files = input_files(inputs)
    total = None if any(file.suffix.lower() in VIDEOS for file in files) else len(files)
    with faults_by_flag():
        model = open_model(local_bundle(bundle, interface="arrays"), runtime, weight_budget_gib=weight_budget_gib)
    options = PredictOptions(batch, top_k, every, Thresholds(conf, iou))
    started, count = time.monotonic(), 0
    kept = f": {out} keeps the answers so far" if out is not None else ""
    with (
        cancellable(kept),
        _progress(is_shown=not (quiet or as_json)) as progress,
        contextlib.ExitStack() as open_files,
    ):
        sinks = _sinks(model, files, out, predictions, open_files)
        task = progress.add_task("run", total=total)
        for answered in answer_files(model.bundle, model.run, files, options):
            echo(json.dumps(answered.to_json(), ensure_ascii=False) if as_json else str(answered))
            for write in sinks:
                write(answered)
            count += 1
            progress.advance(task)
    if not quiet and not as_json:
        written = [str(path) for path in (out, predictions) if path is not None]
        _tell_rate(count, time.monotonic() - started, model.description, written)


def _sinks(
    model: Model, files: Sequence[Path], out: Path | None, predictions: Path | None, open_files: contextlib.ExitStack
) -> list[Callable[[Answered], None]]:
    """Return the functions that write an answer to each output file; `open_files` closes the files."""
    from trtkit.runtime.saved_answers import AnswerFolder, PredictionsFile
    from trtkit.runtime.tasks.reader import open_reader

    sinks: list[Callable[[Answered], None]] = []
    if predictions is not None:
        file = PredictionsFile(predictions, model.bundle.manifest, open_reader(model.bundle).labels)
        sinks.append(open_files.enter_context(file).write)
    if out is not None:
        sinks.append(open_files.enter_context(AnswerFolder(out, files)).write)
    return sinks


def _tell_rate(count: int, seconds: float, description: str, written: Sequence[str]) -> None:
    from trtkit.cli.say import say

    rate = f"{count} input{'' if count == 1 else 's'} in {seconds:.1f} s, {count / seconds:.1f} per second"
    say(f"{rate}, {description}" + (f"; see {' and '.join(written)}" if written else ""))


def _progress(*, is_shown: bool) -> Progress:
    """Return a progress bar on stderr, unless the terminal shows the answers themselves."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from trtkit.cli import visible

    is_seen = is_shown and sys.stderr.isatty() and not sys.stdout.isatty()
    console = visible.console(stderr=True, quiet=not is_seen)
    columns = (BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not is_seen, redirect_stdout=False)
