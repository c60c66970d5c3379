"""`trtkit eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtkit.cli.local_model import bundle_argument, local_bundle
from trtkit.cli.options import check_page, json_option, page_origin, quiet_option
from trtkit.cli.serving_options import serving_option
from trtkit.files import write_output

if TYPE_CHECKING:
    from rich.table import Table

    from trtkit.serving_options import Runtime
    from trtkit.verification.evaluation import Evaluation, EvaluationRequest, Questions
    from trtkit.verification.task_evaluation import TasksRequest
    from trtkit.verification.vision_evaluation import VisionRequest

DIRECTORY = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
EPILOG = """\b
Examples:
  trtkit eval bundles/llama --perplexity book.txt
  trtkit eval bundles/llama --perplexity book.txt --windows 0 --json
  trtkit eval bundles/llama-int8 --compare bundles/llama --perplexity book.txt
  trtkit eval bundles/llama-int8 --compare bundles/llama --questions
  trtkit eval bundles/llama --tasks arc_easy,hellaswag --num-fewshot 5
  trtkit eval bundles/efficientnet-lite0 --images val --html accuracy.html
  trtkit eval bundles/yolo --images val2017 --truth instances_val2017.json
  trtkit eval bundles/yolo --images val --truth val.json --predictions b.json

\b
Classification needs one folder of pictures per class, or a CSV file of
`file,class` lines. OCR needs a CSV file of `file,text` lines, and detection
COCO's JSON."""


@click.command(epilog=EPILOG)
@bundle_argument
@click.option("--perplexity", "text", metavar="FILE", help="UTF-8 text to measure perplexity on.")
@click.option("--questions", "has_questions", is_flag=True, help="Ask 16 questions with known answers.")
@click.option("--compare", "base", metavar="BUNDLE", help="Baseline to compare with, e.g. before quantization.")
@click.option(
    "--windows", type=click.IntRange(0), default=8, metavar="N", help="Number of windows; 0 for all.  [default: 8]"
)
@click.option("--window-tokens", type=click.IntRange(2), default=512, metavar="N", help="[default: 512]")
@click.option("--tasks", metavar="NAMES", help="Tasks of lm-evaluation-harness, separated by commas.")
@click.option("--num-fewshot", type=click.IntRange(0), metavar="N", help="Examples per prompt.  [default: the task's]")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Questions per task.  [default: all]")
@click.option("--include-path", type=DIRECTORY, help="Folder with your own tasks, in YAML.")
@click.option("--apply-chat-template", is_flag=True, help="Write the tasks' prompts as conversations.")
@click.option("--images", type=DIRECTORY, help="Labelled pictures for a vision model.")
@click.option("--truth", type=FILE, help="Expected answers: a CSV file, or COCO annotations.")
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Pictures per call.  [default: the profile's opt]")
@click.option(
    "--conf",
    type=click.FloatRange(0, 1),
    metavar="X",
    help="With --images: smallest score of a box in the confusion matrix.  [default: the config's]",
)
@click.option(
    "--predictions",
    type=FILE,
    metavar="FILE",
    help="Write what the model answers: JSON lines (.jsonl), or a detector's boxes as COCO's results (.json).",
)
@click.option("--html", type=FILE, metavar="FILE", help="With --images: write a page with the confusion matrix.")
@serving_option("runtime")
@json_option
@quiet_option
def command(
    bundle: str,
    text: str | None,
    has_questions: bool,
    base: str | None,
    windows: int,
    window_tokens: int,
    tasks: str | None,
    num_fewshot: int | None,
    limit: int | None,
    include_path: Path | None,
    apply_chat_template: bool,
    images: Path | None,
    truth: Path | None,
    batch: int | None,
    conf: float | None,
    predictions: Path | None,
    html: Path | None,
    runtime: Runtime,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure a model's quality: perplexity and answers of a language model, accuracy of a vision model.

    The text is split into independent windows, as in `trtkit verify --text`. If the engine returns only the last
    token's logits (`llm.logits: last`, the default), the reference executor runs the same network. `--compare` runs the
    same windows on another bundle, such as the unquantized one. `--questions` asks both the same short questions: a
    model can keep its perplexity and still answer wrong. `--tasks` runs those of lm-eval, of `trtkit[lm-eval]`.
    """
    from trtkit.verification.evaluation import EvaluationRequest
    from trtkit.verification.task_evaluation import TasksRequest
    from trtkit.verification.vision_evaluation import VisionRequest

    is_task_option = num_fewshot is not None or limit is not None or include_path is not None or apply_chat_template
    if tasks is None and is_task_option:
        raise click.UsageError("--num-fewshot, --limit, --include-path and --apply-chat-template go with --tasks")
    if tasks is not None:
        if text is not None or has_questions or base is not None or images is not None:
            raise click.UsageError("--tasks runs alone, without --perplexity, --questions, --compare and --images")
        names = tuple(name.strip() for name in tasks.split(",") if name.strip())
        request = TasksRequest(names, include_path, num_fewshot, limit, apply_chat_template, runtime)
        _evaluate_tasks(local_bundle(bundle), request, quiet=quiet, as_json=as_json)
        return
    if images is not None:
        if text is not None or has_questions or base is not None:
            raise click.UsageError("--images is for vision models; --perplexity, --questions and --compare are not")
        vision = VisionRequest(images, truth, batch, runtime, predictions, conf)
        _evaluate_vision(local_bundle(bundle), vision, html, quiet=quiet, as_json=as_json)
        return
    if any(value is not None for value in (truth, batch, conf, predictions, html)):
        raise click.UsageError("--truth, --batch, --conf, --predictions and --html go with --images")
    if text is None and not has_questions:
        raise click.UsageError(
            "give --perplexity FILE, --questions or --tasks for a language model, --images for a vision model"
        )
    wanted = EvaluationRequest(text, has_questions, windows, window_tokens, runtime)
    _evaluate_text(local_bundle(bundle), wanted, base, quiet=quiet, as_json=as_json)


def _evaluate_text(bundle: str, request: EvaluationRequest, base: str | None, *, quiet: bool, as_json: bool) -> None:
    from trtkit.cli.progress import show_progress
    from trtkit.verification.evaluation import evaluate_bundle

    with show_progress(quiet=quiet or as_json) as runner:
        evaluation = evaluate_bundle(bundle, request, runner, base)
    if as_json:
        click.echo(json.dumps(evaluation.to_json()))
    else:
        _render(evaluation)


def _evaluate_vision(bundle: str, request: VisionRequest, html: Path | None, *, quiet: bool, as_json: bool) -> None:
    from trtkit.cli.progress import show_progress
    from trtkit.cli.tables import show
    from trtkit.report.accuracy import accuracy_tables
    from trtkit.verification.vision_evaluation import evaluate_vision

    check_page(html)
    with show_progress(quiet=quiet or as_json) as runner:
        evaluation = evaluate_vision(bundle, request, runner)
    if html is not None:
        from trtkit.report.pages import page_of

        write_output(html, page_of(evaluation, page_origin()))
    if as_json:
        click.echo(json.dumps(evaluation.to_json()))
    else:
        show(accuracy_tables(evaluation))


def _evaluate_tasks(bundle: str, request: TasksRequest, *, quiet: bool, as_json: bool) -> None:
    from trtkit.cli.progress import show_progress
    from trtkit.cli.tables import console, listing, pairs
    from trtkit.verification.task_evaluation import evaluate_tasks

    with show_progress(quiet=quiet or as_json) as runner:
        evaluation = evaluate_tasks(bundle, request, runner)
    if as_json:
        click.echo(json.dumps(evaluation.to_json()))
        return
    table = listing("tasks", "task", "metric", "filter", "value", "standard error", "questions")
    for measure in evaluation.measures:
        error = "" if measure.error is None else f"{measure.error:.4f}"
        table.add_row(
            measure.task, measure.metric, measure.filter, f"{measure.value:.4f}", error, str(measure.samples or "")
        )
    console().print(table)
    facts = pairs()
    facts.add_row("runtime", evaluation.runtime)
    if evaluation.limit is not None:
        facts.add_row("limit", f"the first {evaluation.limit} questions of each task: not the published measure")
    console().print(facts)


def _render(evaluation: Evaluation) -> None:
    from trtkit.cli.tables import console, pairs
    from trtkit.report.tables import plural

    table, read, distance = pairs(), evaluation.perplexity, evaluation.distance
    other = evaluation.compared
    if read is not None:
        table.add_row("perplexity", f"{read.perplexity:.4f}")
    if other is not None and distance is not None:
        table.add_row("compared with", f"{other.bundle}: perplexity {distance.perplexity:.4f}")
        table.add_row("change", f"{distance.change:+.2%}, {distance.divergence_nats:.4f} nats per token")
        table.add_row("same top token", f"{distance.same_tokens:.1%}")
    if evaluation.neurons is not None:
        table.add_row("neurons", str(evaluation.neurons))
    if evaluation.questions is not None:
        _add_questions(table, evaluation.questions)
    if other is not None:
        sizes = other.own_engine_bytes / 2**20, other.engine_bytes / 2**20
        table.add_row("engine", f"{sizes[0]:.1f} MiB (was {sizes[1]:.1f})")
    if read is not None:
        table.add_row("text", f"{evaluation.text}: {plural(read.windows, 'window')} of {read.window_tokens} tokens")
    table.add_row("runtime", evaluation.runtime)
    if read is not None:
        table.add_row("tokens/s", f"{read.tokens_per_second:.1f}")
    console().print(table)


def _add_questions(table: Table, questions: Questions) -> None:
    """Add the number of correct answers to the table, and the wrong ones."""
    other = "" if questions.compared_right is None else f", {questions.compared_right} before"
    table.add_row("answers", f"{questions.right} of {len(questions.answers)} right{other}")
    for answer in (item for item in questions.answers if not item.is_right):
        table.add_row("", f"{answer.question} {answer.text!r}")
