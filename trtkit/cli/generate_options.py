"""Options of `trtkit generate` for its prompts and for the output of answers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtkit.cli.options import check_outputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.llm import PromptLines


@dataclass(frozen=True)
class PromptOptions:
    """The prompts of a command, as given by options."""

    texts: tuple[str, ...]
    file: str | None
    replicas: int
    images: tuple[str, ...]
    audio: tuple[str, ...]
    language: str | None
    task: str | None
    chat: bool
    system: str | None

    def check(self, bundle: str) -> None:
        """Refuse conflicting options, and a command without prompts."""
        if self.images and not self.texts:
            raise click.UsageError("--image goes with TEXT; in a JSONL file, list images in `images`")
        if (self.language or self.task) and not self.audio:
            raise click.UsageError("--language and --task go with --audio; in a JSONL file, write them in its lines")
        if not self.texts and not self.audio and self.file is None:
            from trtkit.bundle.bundle import open_bundle

            open_bundle(bundle)  # report a bad bundle first
            raise click.UsageError("nothing to answer: give TEXT, --audio FILE or --prompts FILE")
        if self.replicas > 1 and self.file is None:
            raise click.UsageError("--replicas goes with --prompts FILE")
        if self.system is not None and not self.chat:
            raise click.UsageError("--system needs the chat template: leave out --no-chat")

    def read(self) -> PromptLines:
        """Return the prompts. Raises RequestError if their file cannot be read."""
        from trtkit.llm import Recordings, read_prompts

        recordings = Recordings(self.audio, self.language, self.task)
        return read_prompts(self.file, self.texts, self.images, recordings)


@dataclass(frozen=True)
class AnswerOptions:
    """Output of answers. output: the file to write them to; None for stdout."""

    output: Path | None
    restart: bool
    stats: bool
    as_json: bool

    def check(self, options: Mapping[str, Any], prompts: str | None) -> None:
        """Refuse conflicting options. prompts: their file, which answers must not overwrite."""
        if self.output is not None and prompts is not None and self.output.resolve() == Path(prompts).resolve():
            raise click.UsageError("--output and --prompts are the same file")
        if self.restart and self.output is None:
            raise click.UsageError("--restart goes with --output")
        for name in ("logprobs", "prompt_logprobs"):
            if options[name] is not None and not self.as_json and self.output is None:
                raise click.UsageError(f"--{name.replace('_', '-')} is only included in JSON: add --json")
        check_outputs(self.output)


def taken(options: dict[str, Any], kind: type) -> dict[str, Any]:
    """Remove the fields of `kind` from the options and return them."""
    return {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}
