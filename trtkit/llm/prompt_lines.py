"""Prompts of a file, one per line with settings of its own.

Read, checked and prepared, with every problem reported at once.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, RequestError
from trtkit.llm.named_settings import sampling_params
from trtkit.llm.prompts import PROMPT_KINDS, problems_of, raise_prompt_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trtkit.llm.prompts import PreparedPrompt, Prompt
    from trtkit.llm.text_bundle import TextBundle


AUDIO = "audio"


@dataclass(frozen=True)
class PromptLine:
    """A prompt as it was written: a text, a conversation or token ids.

    kind: `audio` for the path of a recording; language, task: of its transcript, the model's defaults if None. id: of
    its answer. file, line: its location, empty and 0 outside a file. settings: its own, by any of their names. images:
    paths, in the order in which the prompt uses them.
    """

    id: str | int
    content: str | list[Any]
    kind: str = "prompt"
    file: str = ""
    line: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    language: str | None = None
    task: str | None = None

    @property
    def where(self) -> str:
        """Its location, for messages."""
        return f"{self.file}:{self.line}" if self.file else f"prompt {self.id}"

    @property
    def heading(self) -> str:
        """The first line of the prompt, short."""
        text = self.content if isinstance(self.content, str) else f"{len(self.content)} token ids"
        if self.kind == "messages":
            text = _shown(self.content[-1]["content"])  # type: ignore[index]
        first = text.strip().partition("\n")[0]
        return f"{first[:72]}..." if len(first) > 75 else first


@dataclass
class PromptLines:
    """Prompts as they were read. problems: with the line that each is in."""

    prompts: list[PromptLine] = field(default_factory=list)
    problems: list[tuple[int, Problem]] = field(default_factory=list)

    def add_problems(self, error: RequestError, prompt: PromptLine) -> None:
        """Add the problems of one prompt."""
        self.problems += [(prompt.line, problem) for problem in problems_of(error, prompt.where)]

    def check(self) -> None:
        """Raise PromptsError if there is a problem."""
        raise_prompt_problems([problem for _, problem in sorted(self.problems, key=lambda item: item[0])])


@dataclass(frozen=True)
class Recordings:
    """Audio files to be transcribed, each a prompt of its own."""

    paths: tuple[str, ...] = ()
    language: str | None = None
    task: str | None = None


def read_prompts(
    file: str | Path | None = None,
    texts: Sequence[str] = (),
    images: tuple[str, ...] = (),
    recordings: Recordings | None = None,
) -> PromptLines:
    """Return texts as prompts, all with `images`, and recordings, followed by those of a file (`-`: stdin).

    A file has JSON lines, or plain text lines if its name ends in .txt. Raises RequestError if it cannot be read;
    problems with its lines are collected in `problems`.
    """
    lines = PromptLines([PromptLine(index, text, images=images) for index, text in enumerate(texts)])
    lines.problems += [(0, Problem("the prompt is empty", "--prompt")) for text in texts if not text.strip()]
    heard = Recordings() if recordings is None else recordings
    lines.prompts += [
        PromptLine(index, path, AUDIO, language=heard.language, task=heard.task)
        for index, path in enumerate(heard.paths, len(texts))
    ]
    if file is not None:
        _read_file(str(file), lines)
    lines.problems += _repeated_ids(lines.prompts)
    return lines


def prepare_prompts(
    lines: PromptLines,
    model: TextBundle,
    settings: Mapping[str, Any],
    *,
    is_chat: bool = True,
    system: str | None = None,
) -> list[PreparedPrompt]:
    """Return prompts for `LLM.generate`; a request's id is the number of its prompt.

    settings: for all prompts, by any of their names; a line's own settings override them. is_chat: whether a text is a
    user message, if the model has a chat template; system: the system message before it.
    Raises SettingsError for `settings`, PromptsError that lists every other problem.
    """
    prompts: list[PreparedPrompt] = []
    shared = None if all(line.settings for line in lines.prompts) else sampling_params(model, settings)
    for index, line in enumerate(lines.prompts):
        try:
            params = shared if shared and not line.settings else sampling_params(model, settings, line.settings)
            prepared = model.check(model.prepare(_prompt_of(line, model, is_chat=is_chat, system=system), params))
            prompts.append(replace(prepared, request_id=str(index), where=line.where))
        except RequestError as error:
            lines.add_problems(error, line)
    lines.check()
    return prompts


def _prompt_of(line: PromptLine, model: TextBundle, *, is_chat: bool, system: str | None) -> Prompt:
    """Return the prompt for `LLM`. A text becomes a message if there is a template, or if there is a system message."""
    if line.kind == AUDIO:
        return {AUDIO: line.content, "language": line.language, "task": line.task}
    images = list(line.images)
    if line.kind == "prompt_token_ids":
        return {"prompt_token_ids": line.content, "images": images}
    if model.tokenizer is None:
        fix = 'give {"prompt_token_ids": [...]} in a JSONL file with --prompts'
        raise RequestError("the bundle has no tokenizer, so prompts are token ids", fix=fix)
    messages: Any = line.content
    if line.kind == "prompt":
        if system is None and not (is_chat and model.tokenizer.has_chat_template):
            return {"prompt": line.content, "images": images}
        parts = [*({"type": "image"} for _ in images), {"type": "text", "text": line.content}]
        messages = [{"role": "user", "content": parts if images else line.content}]
    if system is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return {"messages": messages, "images": images}


def _shown(content: Any) -> str:
    """Return a message's content as text."""
    if not isinstance(content, list):
        return str(content)
    parts = (part for part in content if isinstance(part, dict))
    return " ".join(str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts)


def _read_file(file: str, lines: PromptLines) -> None:
    """Add a file's prompts, and the problems of its lines."""
    before = len(lines.prompts) + len(lines.problems)
    read = _plain_line if file.endswith(".txt") else _json_line
    name = "stdin" if file == "-" else file
    for number, line in _lines(file):
        unnamed = PromptLine(len(lines.prompts), "", file=name, line=number)
        try:
            lines.prompts.append(read(line, unnamed))
        except RequestError as error:
            lines.add_problems(error, unnamed)
    if len(lines.prompts) + len(lines.problems) == before:
        lines.problems.append((0, Problem("the file holds no prompts", name, "put one prompt on each line")))


def _lines(file: str) -> Iterator[tuple[int, str]]:
    """Return the lines that are not empty, numbered from 1."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        lines = data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise RequestError(f"the prompts cannot be read: {error.strerror}", file, "check the path") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the prompts cannot be read: {error}", file, "give a UTF-8 file") from None
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _plain_line(line: str, unnamed: PromptLine) -> PromptLine:
    return replace(unnamed, content=line.rstrip("\r"))


def _json_line(line: str, unnamed: PromptLine) -> PromptLine:
    """Read `{"prompt": ...}`, `{"messages": ...}` or `{"prompt_token_ids": ...}` with an id, images and settings."""
    try:
        data = json.loads(line)
    except ValueError as error:
        fix = 'write one object per line: {"prompt": "Gravity is"}; plain lines need a name that ends in .txt'
        raise RequestError(f"invalid JSON: {error}", fix=fix) from None
    if not isinstance(data, dict):
        raise RequestError(f"`{line.strip()[:40]}` is not an object", fix='write {"prompt": ...}')
    kinds = [name for name in (*PROMPT_KINDS, AUDIO) if name in data]
    if len(kinds) != 1:
        what = f"has {' and '.join(f'`{kind}`' for kind in kinds) or 'no prompt'}"
        raise RequestError(what, fix="give one of `prompt`, `messages`, `prompt_token_ids`, `audio`")
    content, name = data.pop(kinds[0]), data.pop("id", unnamed.id)
    images = data.pop("images", [])
    _CHECKS[kinds[0]](content)
    if not isinstance(images, list) or not all(isinstance(path, str) for path in images):
        what = f"`images` is {json.dumps(images)[:40]}, not a list of paths"
        raise RequestError(what, fix='write {"images": ["a.jpg"]}')
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise RequestError(f"`id` is {json.dumps(name)}, neither text nor a whole number")
    line_of = replace(unnamed, id=name, content=content, kind=kinds[0], images=tuple(images))
    if kinds == [AUDIO]:
        line_of = replace(line_of, language=data.pop("language", None), task=data.pop("task", None))
    return replace(line_of, settings=data)


def _check_text(content: Any) -> None:
    if not isinstance(content, str):
        raise RequestError(f"`prompt` is {json.dumps(content)[:40]}, not text")
    if not content.strip():
        raise RequestError("the prompt is empty")


def _check_messages(content: Any) -> None:
    if not isinstance(content, list) or not content:
        raise RequestError("`messages` is not a list of at least one message")
    for index, message in enumerate(content):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            fix = 'write {"role": "user", "content": "..."}'
            raise RequestError(f"message {index} has no `role` or no `content`", fix=fix)


def _check_ids(content: Any) -> None:
    if not isinstance(content, list) or not content:
        raise RequestError("`prompt_token_ids` is not a list of at least one token id")
    wrong = [token for token in content if isinstance(token, bool) or not isinstance(token, int) or token < 0]
    if wrong:
        raise RequestError(f"`prompt_token_ids` has {json.dumps(wrong[0])[:40]}, which is not a token id")


def _check_path(content: object) -> None:
    if not isinstance(content, str) or not content:
        raise RequestError(f"`audio` is {json.dumps(content)[:40]}, not a path", fix='write {"audio": "talk.wav"}')


_CHECKS: dict[str, Callable[[Any], None]] = {
    AUDIO: _check_path,
    "prompt": _check_text,
    "messages": _check_messages,
    "prompt_token_ids": _check_ids,
}


def _repeated_ids(prompts: list[PromptLine]) -> list[tuple[int, Problem]]:
    """Return a problem for each id that an earlier prompt has."""
    seen: dict[str | int, PromptLine] = {}
    problems = []
    for prompt in prompts:
        first = seen.setdefault(prompt.id, prompt)
        if first is not prompt:
            what = f"the id {json.dumps(prompt.id)} is also used by {first.where}"
            problems.append((prompt.line, Problem(what, prompt.where, "give each prompt a unique id")))
    return problems
