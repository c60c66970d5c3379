"""`trtkit generate`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.generate_options import AnswerOptions, PromptOptions, taken
from trtkit.cli.local_model import bundle_argument, local_bundle
from trtkit.cli.options import GroupedCommand, json_option, run_options
from trtkit.cli.sampling_options import faults_by_option, flag_of, read_settings, sampling_options
from trtkit.cli.serving_options import cancellable, open_llm, open_replicas, serving_options, split_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from trtkit.cli.generate_answers import Answers
    from trtkit.llm import LLM, PreparedPrompt
    from trtkit.llm.replicas import Replicas

EPILOG = """\b
Examples:
  trtkit generate bundles/llama "What is the capital of France?"
  trtkit generate bundles/llama "Gravity is" --no-chat --stats
  trtkit generate bundles/llama "A haiku." --temperature 0.8 --seed 1
  trtkit generate bundles/llama --prompts asked.jsonl --json > answers.jsonl
  trtkit generate bundles/llama --prompts many.jsonl --output answers.jsonl
  trtkit generate bundles/llama --prompts many.jsonl --replicas 2 -o a.jsonl
  trtkit generate bundles/llama "A person." --json-schema schema.json
  trtkit generate bundles/llava "What is this?" --image photo.jpg
  trtkit generate bundles/llama "Hi" --lora fr=adapter --adapter fr
  trtkit generate bundles/whisper-tiny --audio talk.wav --language en

\b
A line of a JSONL file: {"prompt": "Hi", "id": 7, "temperature": 0.8};
`messages`, `prompt_token_ids` or `audio` can replace `prompt`; `images` lists
paths; settings in a line override options.

\b
Exit codes: 0 done, 1 failed (all or some requests), 2 wrong usage, prompts or
settings, 130 cancelled."""


@click.command(cls=GroupedCommand, epilog=EPILOG)
@bundle_argument
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Same as TEXT; repeatable.")
@click.option(
    "--prompts", "file", metavar="FILE", help="JSONL file, or .txt file with one prompt per line; - for stdin."
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that share the prompts of a file, each on its own GPUs or cores.",
)
@click.option("--image", "images", multiple=True, metavar="FILE", help="Image for TEXT; repeatable.")
@click.option("--audio", multiple=True, metavar="FILE", help="Recording to transcribe; repeatable.")
@click.option("--language", metavar="CODE", help="Language that is spoken, such as `de`.  [default: en]")
@click.option("--task", type=click.Choice(["transcribe", "translate"]), help="What to do with audio.")
@click.option("--chat/--no-chat", default=True, help="Use the chat template if there is one.  [default: chat]")
@click.option("--system", metavar="TEXT", help="The system message.")
@sampling_options
@serving_options("run")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Write answers to FILE, or resume FILE."
)
@click.option("--restart", is_flag=True, help="Replace the answers in FILE.")
@click.option("--stats", is_flag=True, help="Show timings and token counts on stderr.")
@json_option
@run_options
def command(bundle: str, texts: tuple[str, ...], prompts: tuple[str, ...], **options: Any) -> None:
    """Generate text with the language model in BUNDLE from the prompt TEXT, or transcribe audio.

    The answer to a single prompt is streamed; with several, each answer follows its prompt. By default, answers are
    greedy and up to 128 tokens long, as with `LLM.generate`. With --json, each request is printed as one line once it
    is complete.

    With --output, repeating the command resumes a run that was stopped.
    """
    from trtkit.cli.generate_answers import Answers, answer_into
    from trtkit.llm import AnswerSource, prepare_prompts, read_text_bundle
    from trtkit.sources.digest import adapter_digest

    of_prompts = PromptOptions(texts + prompts, **taken(options, PromptOptions))
    of_answers = AnswerOptions(**taken(options, AnswerOptions))
    of_prompts.check(bundle)
    of_answers.check(options, of_prompts.file)
    with cancellable():
        runtime, settings = split_options(options)
        lines, shared = of_prompts.read(), read_settings(settings)
        model = read_text_bundle(local_bundle(bundle, interface="tokens"))
        with faults_by_option():
            prepared = prepare_prompts(lines, model, shared, is_chat=of_prompts.chat, system=of_prompts.system)
        answers = Answers(lines.prompts, prepared, model.tokenizer)

        def opened() -> AbstractContextManager[LLM | Replicas]:
            if of_prompts.replicas == 1:
                return open_llm(model, runtime)
            from trtkit.llm import ServingOptions
            from trtkit.llm.replicas import PromptSource

            dealt = PromptSource(lines.prompts, shared, of_prompts.chat, of_prompts.system)
            return open_replicas(model, ServingOptions(**runtime), dealt, of_prompts.replicas)

        if of_answers.output is None:
            with opened() as llm:
                _print(answers, prepared, llm, of_answers)
            sys.exit(1 if answers.failures else 0)
        named = {flag_of(name): value for name, value in shared.items()} | {"--system": of_prompts.system}
        named |= {f"--lora {name}": adapter_digest(Path(folder)) for name, folder in runtime["lora"].items()}
        source = AnswerSource.of(model.bundle, lines.prompts, named | {"--chat": of_prompts.chat})
        sys.exit(answer_into(of_answers, source, answers, opened))


def _print(answers: Answers, prompts: Sequence[PreparedPrompt], llm: LLM | Replicas, options: AnswerOptions) -> None:
    """Print answers as they complete; that to a single prompt is streamed."""
    from trtkit.cli.generate_answers import request_stats, total_stats
    from trtkit.llm import LLM

    started_s = time.monotonic()
    if options.as_json:
        outputs = llm.generate(prompts, on_output=answers.print_json)
    elif isinstance(llm, LLM) and len(prompts) == 1 and prompts[0].settings.params.n == 1:
        outputs = [answers.print_stream(llm.stream(prompts[0]))]
    else:
        outputs = llm.generate(prompts, on_output=answers.print_text)
    if options.stats and len(outputs) == 1:
        click.echo(request_stats(outputs[0].metrics), err=True)
    elif options.stats:
        metrics = [output.metrics for output in outputs]
        click.echo(total_stats(llm, metrics, time.monotonic() - started_s), err=True)
