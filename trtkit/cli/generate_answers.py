"""Output of `trtkit generate`: answers as text or JSON lines, and the times and counts of `--stats`."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.progress import show_events
from trtkit.cli.say import say, warn
from trtkit.cli.visible import answer, visible
from trtkit.jobs.events import Progress
from trtkit.llm import AnswerFile
from trtkit.report.tables import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from trtkit.cli.generate_options import AnswerOptions
    from trtkit.llm import (
        LLM,
        AnswerSource,
        CompletionOutput,
        Delta,
        PreparedPrompt,
        PromptLine,
        RequestMetrics,
        RequestOutput,
    )
    from trtkit.llm.engine import Statistics
    from trtkit.llm.replicas import Replicas
    from trtkit.runtime.text import Tokenizer


class Answers:
    """Prints the answers of one command. failures: number of requests that ended with an error."""

    def __init__(
        self, lines: Sequence[PromptLine], prompts: Sequence[PreparedPrompt], tokenizer: Tokenizer | None
    ) -> None:
        self._lines, self._prompts, self._tokenizer = lines, prompts, tokenizer
        self._waiting: dict[int, RequestOutput] = {}
        self._printed = 0
        self.failures = 0

    @property
    def prompts(self) -> Sequence[PreparedPrompt]:
        return self._prompts

    @property
    def ids(self) -> list[str | int]:
        return [line.id for line in self._lines]

    def print_stream(self, deltas: Iterator[Delta]) -> RequestOutput:
        """Stream the only answer; return its output."""
        for delta in deltas:
            if delta.output is not None:
                self._warn_of_errors(delta.output)
            answer(delta.text if self._tokenizer else "".join(f"{token} " for token in delta.token_ids), sys.stdout)
        click.echo()
        assert delta.output is not None  # the last one has it
        return delta.output

    def print_json(self, output: RequestOutput) -> None:
        click.echo(json.dumps(self.to_json(output), ensure_ascii=False))

    def to_json(self, output: RequestOutput) -> dict[str, object]:
        """Return a request's line: the prompt as written, and its answers. Warn about failed answers."""
        line = self._warn_of_errors(output)
        data: dict[str, object] = {"id": line.id, line.kind: line.content}
        data |= {"images": list(line.images)} if line.images else {}
        has_several = self._prompts[int(output.request_id)].settings.params.n > 1
        return data | output.to_json(self._tokenizer, has_outputs=has_several)

    def print_text(self, output: RequestOutput) -> None:
        """Print answers in the order of the prompts; those that wait for an earlier one are kept."""
        self._warn_of_errors(output)
        self._waiting[int(output.request_id)] = output
        while self._printed in self._waiting:
            self._print_answers(self._lines[self._printed], self._waiting.pop(self._printed).outputs)
            self._printed += 1

    def _warn_of_errors(self, output: RequestOutput) -> PromptLine:
        """Warn about failed answers; return the prompt."""
        line = self._lines[int(output.request_id)]
        errors = [completion.stop_reason for completion in output.outputs if completion.finish_reason == "error"]
        self.failures += bool(errors)
        for error in errors:
            warn(f"error: {line.where}: {error}")
        return line

    def _print_answers(self, line: PromptLine, completions: Sequence[CompletionOutput]) -> None:
        """Print a prompt's first line, then its answers."""
        blank = "\n" if self._printed else ""
        click.echo(click.style(f"{blank}> {visible(line.heading)}", bold=True))
        for completion in completions:
            number = f"[{completion.index + 1}] " if len(completions) > 1 else ""
            text = completion.text if self._tokenizer is not None else " ".join(map(str, completion.token_ids))
            answer(f"{number}{text}\n", sys.stdout)


def request_stats(metrics: RequestMetrics) -> str:
    """Return a request's metrics as one line."""
    parts = [f"{plural(metrics.output_tokens, 'token')} in {metrics.e2e_s:.2f} s"]
    parts += [f"TTFT {1000 * metrics.ttft_s:.1f} ms"] if metrics.ttft_s is not None else []
    parts += [f"TPOT {1000 * metrics.tpot_s:.1f} ms"] if metrics.tpot_s is not None else []
    parts += (
        [f"{metrics.output_tokens / metrics.e2e_s:.1f} tokens/s"] if metrics.output_tokens and metrics.e2e_s else []
    )
    parts.append(f"prompt {plural(metrics.prompt_tokens, 'token')}, {metrics.reused_tokens} from cache")
    return "; ".join(parts + _speculation(metrics.accepted_tokens, metrics.drafted_tokens))


def total_stats(llm: LLM | Replicas, requests: Sequence[RequestMetrics], seconds: float) -> str:
    """Return a run's totals as one line."""
    from trtkit.llm.replicas import Replicas

    done = llm.statistics
    tokens = sum(request.output_tokens for request in requests)
    parts = [f"{plural(len(requests), 'request')} on {plural(llm.slots, 'slot')} in {seconds:.2f} s"]
    parts += [plural(tokens, "token"), f"{tokens / seconds:.1f} tokens/s"]
    if isinstance(llm, Replicas):
        parts.append(f"answered by replicas: {' + '.join(map(str, llm.answered))}")
    first = sorted(one.ttft_s for one in requests if one.ttft_s is not None)
    tpots_s = sorted(one.tpot_s for one in requests if one.tpot_s is not None)
    parts += [f"TTFT {1000 * first[len(first) // 2]:.1f} ms (median)"] if first else []
    parts += [f"TPOT {1000 * tpots_s[len(tpots_s) // 2]:.1f} ms (median)"] if tpots_s else []
    parts.append(f"prompts {plural(done.prompt_tokens + done.reused_tokens, 'token')}, {done.reused_tokens} from cache")
    parts += [f"{done.restored_tokens} of these from host memory"] if done.restored_tokens else []
    parts += [f"{done.file_tokens} read from files"] if done.file_tokens else []
    parts += [plural(done.preemptions, "preemption")] if done.preemptions else []
    parts += neuron_stats(done) + offload_stats(llm)
    return "; ".join(parts + _speculation(done.accepted_tokens, done.drafted_tokens))


def neuron_stats(done: Statistics) -> list[str]:
    """Return the counts of active and missed blocks of neurons; nothing for a dense model."""
    if not done.read_blocks:
        return []
    blocks = plural(done.active_blocks, "block")
    rows = [f"{done.row_bytes / 2**20:.1f} MiB of their rows read"] if done.row_bytes else []
    return [f"{blocks} of neurons active, {done.read_blocks} read, {done.missed_blocks} missed", *rows]


def offload_stats(llm: LLM | Replicas) -> list[str]:
    """Return what offloading has moved; nothing for other decoders."""
    counts = llm.offload_counts
    if counts is None:
        return []
    parts = [f"{counts.passes} passes over the weights, {counts.loaded_bytes / 2**30:.2f} GiB loaded"]
    copied = counts.fetched_bytes + counts.stored_bytes
    return parts + ([f"{copied / 2**20:.1f} MiB of caches copied"] if copied else [])


def _speculation(accepted: int, drafted: int) -> list[str]:
    return [f"{accepted} of {plural(drafted, 'draft token')} accepted ({accepted / drafted:.0%})"] if drafted else []


def answer_into(
    options: AnswerOptions,
    source: AnswerSource,
    answers: Answers,
    open_llm: Callable[[], AbstractContextManager[LLM | Replicas]],
) -> int:
    """Answer a file's unanswered prompts; return the exit code, 1 if an answer is an error."""
    assert options.output is not None
    with AnswerFile(options.output, source, answers.ids, restarts=options.restart) as file:
        run = FileRun(file, answers)
        run.run(open_llm, has_stats=options.stats)
        run.show(as_json=options.as_json)
        return 1 if file.failed else 0


class FileRun:
    """Answers the unanswered prompts of a file."""

    def __init__(self, file: AnswerFile, answers: Answers) -> None:
        self._file, self._answers, self._total = file, answers, len(answers.prompts)
        self._left = [prompt for index, prompt in enumerate(answers.prompts) if index not in file.done]
        self._answered_before = len(file.done)
        self._metrics: list[RequestMetrics] = []
        self._tokens, self._seconds = 0, 0.0

    def run(self, open_llm: Callable[[], AbstractContextManager[LLM | Replicas]], *, has_stats: bool) -> None:
        """Answer the remaining prompts and put the file in order."""
        if self._answered_before:
            say(f"{self._answered_before} of {plural(self._total, 'prompt')} were answered before")
        if self._left:
            with open_llm() as llm:
                self._answer(llm)
                if has_stats:
                    click.echo(total_stats(llm, self._metrics, self._seconds), err=True)
        self._file.finish()

    def show(self, *, as_json: bool) -> None:
        """Print what was done; tokens and times are of this run only."""
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

    def _answer(self, llm: LLM | Replicas) -> None:
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
    """Return an answer without what would differ in another run of the same request."""
    metrics = answer.pop("metrics")
    return answer | {name: metrics[name] for name in ("prompt_tokens", "output_tokens")}
