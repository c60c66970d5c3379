"""`trtkit chat`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.local_model import bundle_argument, local_bundle
from trtkit.cli.options import GroupedCommand, run_options
from trtkit.cli.sampling_options import sampling_options
from trtkit.cli.serving_options import serving_options
from trtkit.cli.visible import answer, echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.llm import LLM, PreparedPrompt, RequestOutput, TextBundle
    from trtkit.llm.sampling.params import SamplingParams

EPILOG = """\b
Examples:
  trtkit chat bundles/llama
  trtkit chat Qwen/Qwen3-0.6B
  trtkit chat bundles/llama --system "Answer in one sentence." --stats
  echo "What is the capital of France?" | trtkit chat bundles/llama --quiet

\b
Commands: /reset starts over, /system TEXT starts over with a system message,
/stats shows timings, /help, /exit. Ctrl-C stops an answer, Ctrl-D exits."""

HELP = """/reset        start a new conversation
/system TEXT  start over with a system message; without TEXT, with none
/stats        show the last answer's timings and the conversation's tokens
/exit         exit, as Ctrl-D does
Ctrl-C stops an answer."""


@click.command(cls=GroupedCommand, epilog=EPILOG)
@bundle_argument
@click.option("--system", metavar="TEXT", help="The system message.")
@sampling_options
@serving_options("run")
@click.option("--stats", is_flag=True, help="Show timings and token counts after each answer.")
@run_options
def command(bundle: str, system: str | None, stats: bool, **options: Any) -> None:
    """Chat with the language model in BUNDLE.

    The conversation stays in the KV cache and is not recomputed. Input comes from the terminal or a pipe.
    """
    from trtkit.cli.sampling_options import faults_by_option, read_settings
    from trtkit.cli.serving_options import cancellable, open_llm, split_options
    from trtkit.llm import read_text_bundle, sampling_params

    runtime, settings = split_options(options)
    for name in ("logprobs", "prompt_logprobs"):
        if settings[name] is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} is not available in chat: use `trtkit generate`")
    with cancellable():
        model = read_text_bundle(local_bundle(bundle, interface="tokens"))
        _check_template(model)
        with faults_by_option():
            params = sampling_params(model, read_settings(settings))
        if params.n > 1:
            raise click.UsageError("--num-return-sequences is not available in chat: use `trtkit generate`")
        with open_llm(model, runtime) as llm:
            Conversation(llm, model, params, system, has_stats=stats).run()


def _check_template(model: TextBundle) -> None:
    from trtkit.errors import GenerationError

    if model.tokenizer is None or not model.tokenizer.has_chat_template:
        what = "the bundle has no chat template" if model.tokenizer else "the bundle has no tokenizer"
        raise GenerationError(what, str(model.path), "use `trtkit generate`")


class Conversation:
    """A conversation's messages, and the model that answers."""

    def __init__(
        self, llm: LLM, model: TextBundle, params: SamplingParams, system: str | None, *, has_stats: bool
    ) -> None:
        self._llm, self._model, self._params, self._has_stats = llm, model, params, has_stats
        self._last: RequestOutput | None = None
        self._begin(system)

    def run(self) -> None:
        """Answer lines until the input ends."""
        if sys.stdin.isatty():
            click.echo("/help shows the commands.", err=True)
        for line in _lines():
            if line.startswith("/"):
                if not self._command(line):
                    return
            elif line.strip():
                self._answer(line)

    def _begin(self, system: str | None) -> None:
        self._messages = [{"role": "system", "content": system}] if system else []

    def _command(self, line: str) -> bool:
        """Run a chat command; return False to quit."""
        name, _, rest = line.strip().partition(" ")
        if name in {"/exit", "/quit"}:
            return False
        if name == "/reset":
            self._begin(self._system())
            click.echo("conversation reset", err=True)
        elif name == "/system":
            self._begin(rest.strip() or None)
            click.echo("the system message is set; conversation reset", err=True)
        elif name == "/stats":
            self._show_stats()
        elif name == "/help":
            click.echo(HELP, err=True)
        else:
            echo(f"error: unknown command `{name}`\nfix: /help shows the commands", err=True)
        return True

    def _system(self) -> str | None:
        first = self._messages[0] if self._messages else None
        return first["content"] if first and first["role"] == "system" else None

    def _answer(self, line: str) -> None:
        """Stream the answer to a line and keep both as messages; a line that does not fit is dropped."""
        from trtkit.errors import RequestError

        messages = [*self._messages, {"role": "user", "content": line}]
        try:
            prompt = self._model.prepare({"messages": messages}, self._params)
            tokens, limit = len(prompt.read.ids), self._model.max_length
            if tokens > limit:
                what = f"the conversation has {tokens} tokens with this line; a slot holds {limit}"
                raise RequestError(what, fix="/reset starts a new one; or shorten the line")
            text = self._print(prompt)
        except RequestError as error:
            echo(f"error: {error}", err=True)
            return
        self._messages = [*messages, {"role": "assistant", "content": text}]

    def _print(self, prompt: PreparedPrompt) -> str:
        """Print an answer as it streams; Ctrl-C stops it. Return its text so far."""
        pieces = []
        self._last = None
        deltas = self._llm.stream(prompt)
        try:
            for delta in deltas:
                answer(delta.text, sys.stdout)
                pieces.append(delta.text)
                self._last = delta.output
        except KeyboardInterrupt:
            click.echo()
            click.echo("stopped", err=True)
            return "".join(pieces)
        click.echo()
        self._tell_end(len(prompt.read.ids))
        return "".join(pieces)

    def _tell_end(self, prompt_tokens: int) -> None:
        """Print why an answer ended early, and its times if requested."""
        if self._last is None:
            return
        done = self._last.outputs[0]
        if done.finish_reason == "error":
            echo(f"error: {done.stop_reason}", err=True)
        elif done.finish_reason == "length":
            is_full = prompt_tokens + len(done.token_ids) > self._model.max_length
            limit = f"the cache is full, {self._model.max_length} tokens; /reset starts a new conversation"
            click.echo(f"({limit if is_full else 'cut at --max-tokens'})", err=True)
        if self._has_stats:
            self._show_stats()

    def _show_stats(self) -> None:
        from trtkit.cli.generate_answers import request_stats

        if self._last is None:
            click.echo("no answer yet", err=True)
            return
        metrics = self._last.metrics
        click.echo(request_stats(metrics), err=True)
        tokens = metrics.prompt_tokens + metrics.output_tokens
        click.echo(f"conversation: {tokens} of {self._model.max_length} tokens", err=True)


def _lines() -> Iterator[str]:
    """Yield the lines that the user types; Ctrl-C at the prompt discards the line."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (gives `input` its history and keys)
    while True:
        try:
            yield input("> ") if is_terminal else input()
        except EOFError:
            if is_terminal:
                click.echo(err=True)
            return
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            click.echo("\n/exit or Ctrl-D to exit", err=True)
