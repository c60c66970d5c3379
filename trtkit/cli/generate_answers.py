"""What `trtkit generate` prints: answers as text or as JSON lines."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from trtkit.cli.say import warn
from trtkit.cli.visible import answer, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.llm import CompletionOutput, Delta, PreparedPrompt, PromptLine, RequestOutput
    from trtkit.runtime.text import Tokenizer


class Answers:
    """Prints the answers of one command. failures: how many requests ended with an error."""

    def __init__(
        self, lines: Sequence[PromptLine], prompts: Sequence[PreparedPrompt], tokenizer: Tokenizer | None
    ) -> None:
        self._lines, self._prompts, self._tokenizer = lines, prompts, tokenizer
        self._waiting: dict[int, RequestOutput] = {}
        self._printed = 0
        self.failures = 0

    @property
    def prompts(self) -> Sequence[PreparedPrompt]:
        """The prompts, in order."""
        return self._prompts

    @property
    def ids(self) -> list[str | int]:
        """What the prompts are called."""
        return [line.id for line in self._lines]

    def print_stream(self, deltas: Iterator[Delta]) -> RequestOutput:
        """Print the only answer as it is produced; return its output."""
        for delta in deltas:
            if delta.output is not None:
                self._warn_of_errors(delta.output)
            answer(delta.text if self._tokenizer else "".join(f"{token} " for token in delta.token_ids), sys.stdout)
        click.echo()
        assert delta.output is not None  # the last has it
        return delta.output

    def print_json(self, output: RequestOutput) -> None:
        """Print a request's line."""
        click.echo(json.dumps(self.to_json(output), ensure_ascii=False))

    def to_json(self, output: RequestOutput) -> dict[str, object]:
        """Return a request's line: the prompt as it was written, and its answers. Say why answers failed."""
        line = self._warn_of_errors(output)
        data: dict[str, object] = {"id": line.id, line.kind: line.content}
        data |= {"images": list(line.images)} if line.images else {}
        has_several = self._prompts[int(output.request_id)].settings.params.n > 1
        return data | output.to_json(self._tokenizer, has_outputs=has_several)

    def print_text(self, output: RequestOutput) -> None:
        """Print answers in the order of the prompts: those that wait for an earlier one's are kept."""
        self._warn_of_errors(output)
        self._waiting[int(output.request_id)] = output
        while self._printed in self._waiting:
            self._print_answers(self._lines[self._printed], self._waiting.pop(self._printed).outputs)
            self._printed += 1

    def _warn_of_errors(self, output: RequestOutput) -> PromptLine:
        """Say why answers failed; return the prompt."""
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
