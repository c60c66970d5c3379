"""Options of the commands that run a language model, and what they know of a bundle before its network is opened."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli import completions
from trtkit.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trtkit.runtime.llm import LLM
    from trtkit.runtime.text import Tokenizer
    from trtkit.runtime.vision_language import ImagePrompts

_RUNTIMES = ("auto", "tensorrt", "reference")
_OPTIONS = (
    click.option("--runtime", type=click.Choice(_RUNTIMES), default="auto", help="What runs it.  [default: auto]"),
    click.option("--slots", type=int, metavar="N", help="Sequences at once.  [default: the engine's]"),
    click.option("--prefill-budget", type=int, metavar="N", help="New tokens of one step.  [default: the engine's]"),
    click.option("--lookup", type=int, default=0, metavar="N", help="Speculate: N tokens from earlier text."),
    click.option(
        "--draft",
        metavar="BUNDLE",
        help="Speculate: tokens of a smaller model.",
        shell_complete=completions.bundles,
    ),
)
# What the runtime calls its settings, as options.
_FLAGS = {
    "slots": "--slots",
    "token_budget": "--prefill-budget",
    "lookup": "--lookup",
    "speculation": "--lookup, --draft",
}
CANCELLED = 130
RUNTIME_NAMES = ("runtime", "slots", "prefill_budget", "lookup", "draft")


def llm_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the runtime."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the runtime, and the others."""
    runtime = {name: options[name] for name in RUNTIME_NAMES}
    return runtime, {name: value for name, value in options.items() if name not in runtime}


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Let Ctrl-C end the program with a message that fits a stream: what was printed stays."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\ncancelled", err=True)
        sys.exit(CANCELLED)


@dataclass(frozen=True)
class Model:
    """A language model's bundle. max_length: tokens a slot holds. vocab_size: the network's logits.

    tokenizer: None where the bundle has none; then prompts are token ids. images: None where it takes text only.
    """

    path: Path
    tokenizer: Tokenizer | None
    vocab_size: int
    max_length: int
    images: ImagePrompts | None = None


def read_model(path: str) -> Model:
    """Read what prompts and settings are checked against. Raises BundleError, GenerationError."""
    from trtkit.bundle.bundle import open_bundle
    from trtkit.engine.decoders import llm_options as options_of
    from trtkit.errors import GenerationError
    from trtkit.runtime.text import open_tokenizer

    manifest = open_bundle(Path(path)).manifest
    if manifest.interface != "tokens":
        fix = "give a bundle that was built from an `llm` config"
        raise GenerationError("the bundle holds no language model", path, fix)
    logits = next(output for output in manifest.outputs if output.name == "logits")
    tokenizer = open_tokenizer(Path(path) / "model")
    length = options_of(manifest.config).max_sequence_length
    if manifest.images is None:
        return Model(Path(path), tokenizer, logits.shape[-1], length)
    from trtkit.runtime.vision_language import ImagePrompts

    images = ImagePrompts(manifest.images, Path(path) / "model", tokenizer)
    return Model(Path(path), tokenizer, logits.shape[-1], length, images)


def open_llm(model: Model, options: Mapping[str, Any]) -> LLM:
    """Open the model, and say on stderr what runs it."""
    from trtkit.errors import RequestError
    from trtkit.runtime.llm import LLM

    say(f"opening {model.path}")
    try:
        llm = LLM(model.path, **options)
    except RequestError as error:
        raise RequestError(error.what, _FLAGS.get(error.where, error.where), error.fix) from None
    say(f"runtime: {llm.description}")
    return llm
