"""`trtkit generate --output`: the answers to many prompts in a file, where the next run of the same goes on."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.generate_answers import total_stats
from trtkit.cli.progress import show_events
from trtkit.cli.say import say
from trtkit.jobs.events import Progress
from trtkit.llm import AnswerFile
from trtkit.report.tables import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.cli.generate_answers import Answers
    from trtkit.cli.generate_options import AnswerOptions
    from trtkit.llm import LLM, AnswerSource, RequestMetrics


def answer_into(options: AnswerOptions, source: AnswerSource, answers: Answers, open_llm: Callable[[], LLM]) -> int:
    """Answer the prompts that the file has no answers to; return the exit code, 1 if an answer is an error."""
    assert options.output is not None
    with AnswerFile(options.output, source, answers.ids, restarts=options.restart) as file:
        run = FileRun(file, answers)
        run.run(open_llm, has_stats=options.stats)
        run.show(as_json=options.as_json)
        return 1 if file.failed else 0


class FileRun:
    """Answers what is left of a file's prompts."""

    def __init__(self, file: AnswerFile, answers: Answers) -> None:
        self._file, self._answers, self._total = file, answers, len(answers.prompts)
        self._left = [prompt for index, prompt in enumerate(answers.prompts) if index not in file.done]
        self._answered_before = len(file.done)
        self._metrics: list[RequestMetrics] = []
        self._tokens, self._seconds = 0, 0.0

    def run(self, open_llm: Callable[[], LLM], *, has_stats: bool) -> None:
        """Answer what is left, and put the file in order."""
        if self._answered_before:
            say(f"{self._answered_before} of {plural(self._total, 'prompt')} were answered before")
        if self._left:
            with open_llm() as llm:
                self._answer(llm)
                if has_stats:
                    click.echo(total_stats(llm, self._metrics, self._seconds), err=True)
        self._file.finish()

    def show(self, *, as_json: bool) -> None:
        """Print what was done: tokens and times are of this run only."""
        rate = self._tokens / self._seconds if self._seconds else None
        summary: dict[str, object] = {"output": str(self._file.path), "prompts": self._total}
        summary |= {"answered_before": self._answered_before, "failed": len(self._file.failed)}
        summary |= {"prompt_tokens": sum(metrics.prompt_tokens for metrics in self._metrics)}
        summary |= {"reused_tokens": sum(metrics.reused_tokens for metrics in self._metrics)}
        summary |= {"output_tokens": self._tokens, "seconds": self._seconds, "tokens_per_second": rate}
        if as_json:
            click.echo(json.dumps(summary, ensure_ascii=False))
            return
        parts = [plural(self._total, "answer"), *[f"{len(self._file.failed)} failed"] * bool(self._file.failed)]
        if rate is not None:
            parts += [plural(self._tokens, "token"), f"{self._seconds:.1f} s", f"{rate:.1f} tokens/s"]
        say(f"wrote {self._file.path}: {', '.join(parts)}")

    def _answer(self, llm: LLM) -> None:
        """Answer what is left, with a bar."""
        started_s = time.monotonic()
        with show_events() as show:
            show(self._progress())
            for output in llm.answers(self._left):
                self._file.add(int(output.request_id), _without_times(self._answers.to_json(output)))
                self._metrics.append(output.metrics)
                self._tokens += output.metrics.output_tokens
                self._seconds = time.monotonic() - started_s
                show(self._progress(f"{self._tokens / self._seconds:.1f} tokens/s"))

    def _progress(self, rate: str = "") -> Progress:
        return Progress("answering", len(self._file.done), self._total, rate=rate)


def _without_times(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without what another run of the same would not repeat."""
    metrics = answer.pop("metrics")
    return answer | {name: metrics[name] for name in ("prompt_tokens", "output_tokens")}
