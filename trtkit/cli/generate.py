"""`trtkit generate`."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.llm_options import llm_options
from trtkit.cli.options import bundle_argument, json_option, run_options
from trtkit.cli.sampling_options import sampling_options
from trtkit.cli.say import warn
from trtkit.cli.visible import answer, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.cli.requests import Ask
    from trtkit.runtime.llm import LLM, RequestOutput

EPILOG = """\b
Examples:
  trtkit generate bundles/llama --prompt "What is the capital of France?"
  trtkit generate bundles/llama --no-chat --prompt "Gravity is" --stats
  trtkit generate bundles/llama --prompt "A haiku." --temperature 0.8 --seed 1
  trtkit generate bundles/llama --prompts asked.jsonl --json > answers.jsonl
  trtkit generate bundles/llama --prompt "A person." --json-schema schema.json
  trtkit generate bundles/llava --prompt "What is this?" --image photo.jpg

\b
A line of a JSONL file: {"prompt": "Hi", "id": 7, "temperature": 0.8};
`messages` or `prompt_token_ids` may stand for `prompt`; `images` lists paths;
settings of a line win over options.

\b
Exit codes: 0 done, 1 failed, also one request of many, 2 wrong usage, prompts
or settings, 130 cancelled."""


@click.command(epilog=EPILOG)
@bundle_argument
@click.option("--prompt", "texts", multiple=True, metavar="TEXT", help="What to answer; may be given again.")
@click.option("--prompts", "file", metavar="FILE", help="JSON lines, or plain lines of a .txt file; - is stdin.")
@click.option("--image", "images", multiple=True, metavar="FILE", help="An image for --prompt; may be given again.")
@click.option("--chat/--no-chat", default=True, help="Use the chat template, where there is one.  [default: chat]")
@click.option("--system", metavar="TEXT", help="The system message.")
@sampling_options
@llm_options
@click.option("--stats", is_flag=True, help="Show times and counts on stderr.")
@json_option
@run_options
def command(
    bundle: str,
    texts: tuple[str, ...],
    file: str | None,
    images: tuple[str, ...],
    chat: bool,
    system: str | None,
    stats: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate text with the language model in BUNDLE.

    One prompt is answered as it is produced; of several, each answer follows its prompt. Answers are greedy
    unless a setting of draws is given. With --json each request is one line, as it is complete.
    """
    from trtkit.cli.llm_options import cancellable, open_llm, split_options
    from trtkit.cli.prompts import read_prompts
    from trtkit.cli.requests import Wording, make_asks
    from trtkit.cli.sampling_options import given_settings
    from trtkit.runtime.llm import read_text_bundle

    if images and not texts:
        raise click.UsageError("--image is for --prompt: a JSONL file names images in its lines")
    _check(texts, file, options, is_plain=not chat and system is not None, as_json=as_json)
    with cancellable():
        runtime, settings = split_options(options)
        prompts, given = read_prompts(texts, file, images), given_settings(settings)
        model = read_text_bundle(bundle)
        asks = make_asks(prompts, model, given, Wording(chat, system))
        with open_llm(model, runtime) as llm:
            run = Run(llm, asks, as_json, stats)
            run.submit()
            run.stream() if run.is_stream else run.print_all()
            run.report()
    sys.exit(1 if run.failures else 0)


def _check(
    texts: tuple[str, ...], file: str | None, options: Mapping[str, Any], *, is_plain: bool, as_json: bool
) -> None:
    """Refuse options that do not go together."""
    if not texts and file is None:
        raise click.UsageError("nothing to answer: give --prompt TEXT or --prompts FILE")
    if is_plain:
        raise click.UsageError("--system needs the chat template: leave out --no-chat")
    for name in ("logprobs", "prompt_logprobs"):
        if options[name] is not None and not as_json:
            raise click.UsageError(f"--{name.replace('_', '-')} is shown in JSON only: add --json")


class Run:
    """The requests of one command on an open model.

    failures: how many requests ended with an error.
    """

    def __init__(self, llm: LLM, asks: Sequence[Ask], as_json: bool, has_stats: bool) -> None:
        self._llm, self._asks, self._as_json, self._has_stats = llm, asks, as_json, has_stats
        self._outputs: dict[int, RequestOutput] = {}
        self._started_s = time.monotonic()
        self.failures = 0

    @property
    def is_stream(self) -> bool:
        """Whether there is one answer only, which a person can read while it is made."""
        return len(self._asks) == 1 and self._asks[0].params.n == 1 and not self._as_json

    def submit(self) -> None:
        """Give all requests to the engine. Raises PromptsError that lists those it cannot serve."""
        from trtkit.cli.prompts import Prompts
        from trtkit.cli.requests import problems_of
        from trtkit.errors import RequestError

        refused = Prompts()
        for index, ask in enumerate(self._asks):
            try:
                prompt = {"prompt_token_ids": ask.ids, "images": ask.images}
                self._llm.frontend.add(prompt, ask.params, str(index), is_streamed=self.is_stream)
            except RequestError as error:
                refused.problems += problems_of(error, ask.prompt)
        refused.check()

    def stream(self) -> None:
        """Print the answer as it comes."""
        while self._llm.frontend.jobs:
            self._step()
            for delta in self._llm.frontend.news():
                text = delta.text if self._llm.tokenizer else "".join(f"{token} " for token in delta.token_ids)
                answer(text, sys.stdout)
        click.echo()

    def print_all(self) -> None:
        """Print answers: JSON as each is complete, text in the order of the prompts."""
        printed = 0
        while self._llm.frontend.jobs:
            for index in self._step():
                if self._as_json:
                    self._print_json(index)
            while not self._as_json and printed in self._outputs:
                self._print_text(printed)
                printed += 1

    def report(self) -> None:
        """Show times and counts where asked."""
        from trtkit.cli.answers import request_stats, total_stats

        outputs = [self._outputs[index] for index in sorted(self._outputs)]
        if self._has_stats and len(outputs) == 1:
            click.echo(request_stats(outputs[0].metrics), err=True)
        elif self._has_stats:
            click.echo(total_stats(self._llm, outputs, time.monotonic() - self._started_s), err=True)

    def _step(self) -> list[int]:
        """Run the engine one step; return the requests that are complete, their errors told."""
        from trtkit.cli.answers import errors_of

        done = [(int(job.id), job.output()) for job in self._llm.frontend.step()]
        for index, output in done:
            self._outputs[index] = output
            errors = errors_of(output)
            self.failures += bool(errors)
            prompt = self._asks[index].prompt
            for error in errors:
                warn(f"error: {prompt.where}: {error}")
        return [index for index, _ in done]

    def _print_json(self, index: int) -> None:
        from trtkit.cli.answers import answer_json

        found = answer_json(self._asks[index], self._outputs[index], self._llm.tokenizer)
        click.echo(json.dumps(found, ensure_ascii=False))

    def _print_text(self, index: int) -> None:
        """Print a prompt's first line, then its answers."""
        from trtkit.cli.answers import answer_text

        click.echo(
            click.style(f"{'' if index == 0 else chr(10)}> {visible(self._asks[index].prompt.heading)}", bold=True)
        )
        answers = self._outputs[index].outputs
        for each in answers:
            number = f"[{each.index + 1}] " if len(answers) > 1 else ""
            answer(f"{number}{answer_text(each, self._llm.tokenizer)}\n", sys.stdout)
