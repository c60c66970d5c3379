"""`trtkit generate`."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.options import bundle_argument, json_option, run_options
from trtkit.cli.runtime_options import runtime_options
from trtkit.cli.sampling_options import sampling_options
from trtkit.cli.say import warn
from trtkit.cli.visible import answer, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.runtime.llm import CompletionOutput, Delta, PreparedPrompt, PromptLine, RequestOutput
    from trtkit.runtime.text import Tokenizer

EPILOG = """\b
Examples:
  trtkit generate bundles/llama "What is the capital of France?"
  trtkit generate bundles/llama "Gravity is" --no-chat --stats
  trtkit generate bundles/llama "A haiku." --temperature 0.8 --seed 1
  trtkit generate bundles/llama --prompts asked.jsonl --json > answers.jsonl
  trtkit generate bundles/llama "A person." --json-schema schema.json
  trtkit generate bundles/llava "What is this?" --image photo.jpg
  trtkit generate bundles/whisper-tiny --audio talk.wav --language en

\b
A line of a JSONL file: {"prompt": "Hi", "id": 7, "temperature": 0.8};
`messages`, `prompt_token_ids` or `audio` can replace `prompt`; `images` lists
paths; settings in a line override options.

\b
Exit codes: 0 done, 1 failed (all or some requests), 2 wrong usage, prompts or
settings, 130 cancelled."""


@click.command(epilog=EPILOG)
@bundle_argument
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Same as TEXT; repeatable.")
@click.option(
    "--prompts", "file", metavar="FILE", help="JSONL file, or .txt file with one prompt per line; - for stdin."
)
@click.option("--image", "images", multiple=True, metavar="FILE", help="Image for TEXT; repeatable.")
@click.option("--audio", multiple=True, metavar="FILE", help="Recording to transcribe; repeatable.")
@click.option("--language", metavar="CODE", help="Language that is spoken, such as `de`.  [default: en]")
@click.option("--task", type=click.Choice(["transcribe", "translate"]), help="What to do with audio.")
@click.option("--chat/--no-chat", default=True, help="Use the chat template if there is one.  [default: chat]")
@click.option("--system", metavar="TEXT", help="The system message.")
@sampling_options
@runtime_options
@click.option("--stats", is_flag=True, help="Show timings and token counts on stderr.")
@json_option
@run_options
def command(
    bundle: str,
    texts: tuple[str, ...],
    prompts: tuple[str, ...],
    file: str | None,
    images: tuple[str, ...],
    audio: tuple[str, ...],
    language: str | None,
    task: str | None,
    chat: bool,
    system: str | None,
    stats: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate text with the language model in BUNDLE from the prompt TEXT, or transcribe audio.

    One prompt is answered as it is produced; of several, each answer follows its prompt. Answers are greedy and have up
    to 128 tokens unless options say otherwise, as those of `LLM.generate` without settings are. With --json
    each request is one line, as it is complete.
    """
    from trtkit.bundle.bundle import open_bundle
    from trtkit.cli.llm_stats import request_stats, total_stats
    from trtkit.cli.runtime_options import cancellable, open_llm, split_options
    from trtkit.cli.sampling_options import faults_by_option, read_settings
    from trtkit.runtime.llm import Recordings, prepare_prompts, read_prompts, read_text_bundle

    texts += prompts
    if images and not texts:
        raise click.UsageError("--image goes with TEXT; in a JSONL file, list images in `images`")
    if (language or task) and not audio:
        raise click.UsageError("--language and --task go with --audio; in a JSONL file, write them in its lines")
    if not texts and not audio and file is None:
        open_bundle(bundle)  # what is wrong with that comes first
        raise click.UsageError("nothing to answer: give TEXT, --audio FILE or --prompts FILE")
    _check(options, is_plain=not chat and system is not None, as_json=as_json)
    with cancellable():
        runtime, settings = split_options(options)
        lines, shared = read_prompts(file, texts, images, Recordings(audio, language, task)), read_settings(settings)
        model = read_text_bundle(bundle)
        with faults_by_option():
            prepared = prepare_prompts(lines, model, shared, is_chat=chat, system=system)
        with open_llm(model, runtime) as llm:
            answers, started_s = Answers(lines.prompts, prepared, model.tokenizer), time.monotonic()
            if as_json:
                outputs = llm.generate(prepared, on_output=answers.print_json)
            elif len(prepared) == 1 and prepared[0].settings.params.n == 1:
                outputs = [answers.print_stream(llm.stream(prepared[0]))]
            else:
                outputs = llm.generate(prepared, on_output=answers.print_text)
            if stats and len(outputs) == 1:
                click.echo(request_stats(outputs[0].metrics), err=True)
            elif stats:
                click.echo(total_stats(llm, outputs, time.monotonic() - started_s), err=True)
    sys.exit(1 if answers.failures else 0)


def _check(options: Mapping[str, Any], *, is_plain: bool, as_json: bool) -> None:
    """Refuse options that do not go together."""
    if is_plain:
        raise click.UsageError("--system needs the chat template: leave out --no-chat")
    for name in ("logprobs", "prompt_logprobs"):
        if options[name] is not None and not as_json:
            raise click.UsageError(f"--{name.replace('_', '-')} is only included in JSON: add --json")


class Answers:
    """Prints the answers of one command. failures: how many requests ended with an error."""

    def __init__(
        self, lines: Sequence[PromptLine], prompts: Sequence[PreparedPrompt], tokenizer: Tokenizer | None
    ) -> None:
        self._lines, self._prompts, self._tokenizer = lines, prompts, tokenizer
        self._waiting: dict[int, RequestOutput] = {}
        self._printed = 0
        self.failures = 0

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
        """Print a request's line: the prompt as it was written, and its answers."""
        line = self._warn_of_errors(output)
        data: dict[str, object] = {"id": line.id, line.kind: line.content}
        data |= {"images": list(line.images)} if line.images else {}
        has_several = self._prompts[int(output.request_id)].settings.params.n > 1
        data |= output.to_json(self._tokenizer, has_outputs=has_several)
        click.echo(json.dumps(data, ensure_ascii=False))

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
        errors = [each.stop_reason for each in output.outputs if each.finish_reason == "error"]
        self.failures += bool(errors)
        for error in errors:
            warn(f"error: {line.where}: {error}")
        return line

    def _print_answers(self, line: PromptLine, completions: Sequence[CompletionOutput]) -> None:
        """Print a prompt's first line, then its answers."""
        blank = "\n" if self._printed else ""
        click.echo(click.style(f"{blank}> {visible(line.heading)}", bold=True))
        for each in completions:
            number = f"[{each.index + 1}] " if len(completions) > 1 else ""
            text = each.text if self._tokenizer is not None else " ".join(map(str, each.token_ids))
            answer(f"{number}{text}\n", sys.stdout)
