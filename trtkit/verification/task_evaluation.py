"""Evaluation of a language model on lm-evaluation-harness tasks."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from trtkit.errors import SourceError, did_you_mean
from trtkit.jobs.events import Phase
from trtkit.llm import LLM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lm_eval.api.model import LM
    from lm_eval.result_schema import EvalResults
    from lm_eval.tasks import TaskManager

    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner
    from trtkit.serving_options import Runtime


@dataclass(frozen=True)
class TasksRequest:
    """What to evaluate on. tasks: names or patterns of tasks, groups and tags.

    include_path: a folder with the user's own tasks. num_fewshot: examples before each question; None for the task's
    own number. limit: questions per task, None for all. chat_template: whether prompts are formatted as conversations.
    """

    tasks: tuple[str, ...]
    include_path: Path | None = None
    num_fewshot: int | None = None
    limit: int | None = None
    chat_template: bool = False
    runtime: Runtime = "auto"


@dataclass(frozen=True)
class Measure:
    """One metric of a task. filter: how answers were extracted. error: its standard error, None if unknown."""

    task: str
    metric: str
    filter: str
    value: float
    error: float | None
    samples: int | None


@dataclass(frozen=True)
class TaskEvaluation:
    """Results of tasks. limit: questions per task, None for all. versions: of the tasks.

    runtime: what ran the model.
    """

    measures: tuple[Measure, ...]
    runtime: str
    seconds: float
    limit: int | None = None
    versions: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return JSON data, as `trtkit eval --json` prints it."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the figures, one per line."""
        figures = (
            f"{measure.task} {measure.metric} ({measure.filter}): {measure.value:.4f}" for measure in self.measures
        )
        return "\n".join([f"runtime: {self.runtime}", *figures])


def evaluate_tasks(bundle: Bundle | Path | str, request: TasksRequest, runner: Runner) -> TaskEvaluation:
    """Evaluate a language model's bundle on tasks.

    An engine that returns only the last token's logits (`llm.logits: last`) is replaced by the reference executor on
    the same network. Raises SourceError for tasks that are unknown or cannot be read, GenerationError for a bundle or
    runtime that cannot be used, RequestError for requests that the model cannot answer.
    """
    from trtkit.verification.harness import HarnessModel

    manager, names = _tasks(request)
    runner.report(Phase("open"))
    started = time.monotonic()
    with LLM(bundle, runtime=request.runtime, needs_all_logits=True) as llm:
        model = HarnessModel(llm, runner.report)
        runner.report(Phase("evaluate"))
        results = _run(model, manager, names, request)
        description = llm.description
    seconds = round(time.monotonic() - started, 3)
    return TaskEvaluation(tuple(_measures(results)), description, seconds, request.limit, dict(results["versions"]))


def _tasks(request: TasksRequest) -> tuple[TaskManager, list[str]]:
    """Return the task manager and the requested names. Raises SourceError for unknown ones."""
    from lm_eval.tasks import TaskManager

    if request.include_path is not None and not request.include_path.is_dir():
        raise SourceError("no such folder", str(request.include_path), "give a folder with YAML files of tasks")
    manager = TaskManager(include_path=None if request.include_path is None else str(request.include_path))
    names: list[str] = []
    for name in request.tasks:
        matches = manager.match_tasks([name])
        if not matches:
            fix = did_you_mean(name, manager.all_tasks) or "`lm-eval ls tasks` lists them; --include-path adds yours"
            raise SourceError(f"unknown task `{name}`", "--tasks", fix)
        names += matches
    return manager, list(dict.fromkeys(names))


def _run(model: LM, manager: TaskManager, names: Sequence[str], request: TasksRequest) -> EvalResults:
    """Run the tasks and return the harness's results. Raises SourceError for data that cannot be read."""
    from lm_eval import simple_evaluate

    try:
        results = simple_evaluate(
            model,
            tasks=list(names),
            num_fewshot=request.num_fewshot,
            limit=request.limit,
            apply_chat_template=request.chat_template,
            task_manager=manager,
            log_samples=False,
        )
    except OSError as error:  # the data sets' library raises kinds of it for files and hubs that cannot be reached
        what = f"the data of the tasks cannot be read: {error}"
        raise SourceError(
            what, ", ".join(names), "data sets come from the Hugging Face hub; fetch them first"
        ) from None
    assert results is not None  # of the first process, which is the only one
    return results


def _measures(results: EvalResults) -> list[Measure]:
    """Return the metrics of all tasks and groups."""
    counts = results.get("n-samples", {})
    measures = []
    for task, figures in results["results"].items():
        for key, value in figures.items():
            metric, _, kind = key.partition(",")
            if kind and not metric.endswith("_stderr"):
                error = figures.get(f"{metric}_stderr,{kind}")
                error = float(error) if isinstance(error, (int, float)) else None
                samples = counts.get(task, {}).get("effective")
                measures.append(Measure(task, metric, kind, float(value), error, samples))
    return measures
