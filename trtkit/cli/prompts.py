"""The prompts of a command: options, JSON lines, plain lines; every fault of a file at once."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, ProblemsError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KINDS = ("prompt", "messages", "prompt_token_ids")


class PromptsError(ProblemsError, RequestError):
    """Prompts that cannot be; every problem of them."""


@dataclass(frozen=True)
class Prompt:
    """What is asked, as it was given: a text, a conversation or token ids.

    id: how its answer is named. file, line: where it stands, empty and 0 for an option. settings: its own, by any of
    their names. images: paths, in the order of their places in the prompt.
    """

    id: str | int
    content: str | list[Any]
    kind: str = "prompt"
    file: str = ""
    line: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    images: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Where it stands, for people."""
        return f"{self.file}:{self.line}" if self.file else f"prompt {self.id}"

    @property
    def heading(self) -> str:
        """The first line of what is asked, short."""
        text = self.content if isinstance(self.content, str) else f"{len(self.content)} token ids"
        if self.kind == "messages":
            text = _shown(self.content[-1]["content"])  # type: ignore[index]
        first = text.strip().partition("\n")[0]
        return f"{first[:72]}..." if len(first) > 75 else first


@dataclass
class Prompts:
    """Prompts as they were read. problems: by the line they stand in."""

    found: list[Prompt] = field(default_factory=list)
    problems: list[tuple[int, Problem]] = field(default_factory=list)

    def check(self) -> None:
        """Raise PromptsError where there is a problem."""
        if self.problems:
            ordered = [problem for _, problem in sorted(self.problems, key=lambda item: item[0])]
            raise PromptsError("the prompts cannot be used; nothing was run", ordered)


def _shown(content: Any) -> str:
    """Return a message's content as text."""
    if not isinstance(content, list):
        return str(content)
    parts = (part for part in content if isinstance(part, dict))
    return " ".join(str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts)


def read_prompts(texts: tuple[str, ...], file: str | None, images: tuple[str, ...] = ()) -> Prompts:
    """Return the prompts given as options, all with `images`, then those of a file (`-`: stdin).

    Raises RequestError for no file.
    """
    prompts = Prompts([Prompt(index, text, images=images) for index, text in enumerate(texts)])
    prompts.problems += [(0, Problem("the prompt is empty", "--prompt")) for text in texts if not text.strip()]
    if file is not None:
        _read_file(file, prompts)
    prompts.problems += _twice(prompts.found)
    return prompts


def _read_file(file: str, prompts: Prompts) -> None:
    """Add a file's prompts, and what is wrong with its lines."""
    before = len(prompts.found) + len(prompts.problems)
    read = _plain_line if file.endswith(".txt") else _json_line
    name = "stdin" if file == "-" else file
    for number, line in _lines(file):
        unnamed = Prompt(len(prompts.found), "", file=name, line=number)
        try:
            prompts.found.append(read(line, unnamed))
        except LineError as error:
            prompts.problems.append((number, Problem(error.what, unnamed.where, error.fix)))
    if len(prompts.found) + len(prompts.problems) == before:
        prompts.problems.append((0, Problem("the file holds no prompts", name, "put one prompt on each line")))


def _lines(file: str) -> Iterator[tuple[int, str]]:
    """Return the lines with something on them, numbered from 1."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        lines = data.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise RequestError(f"the prompts cannot be read: {error.strerror}", file, "check the path") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"the prompts cannot be read: {error}", file, "give a UTF-8 file") from None
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


class LineError(Exception):
    """What is wrong with one line."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def _plain_line(line: str, unnamed: Prompt) -> Prompt:
    return replace(unnamed, content=line.rstrip("\r"))


def _json_line(line: str, unnamed: Prompt) -> Prompt:
    """Read `{"prompt": ...}`, `{"messages": ...}` or `{"prompt_token_ids": ...}` with an id, images and settings."""
    try:
        data = json.loads(line)
    except ValueError as error:
        fix = 'write one object a line: {"prompt": "Gravity is"}; plain lines need a name that ends in .txt'
        raise LineError(f"invalid JSON: {error}", fix) from None
    if not isinstance(data, dict):
        raise LineError(f"`{line.strip()[:40]}` is not an object", 'write {"prompt": ...}')
    kinds = [name for name in _KINDS if name in data]
    if len(kinds) != 1:
        what = f"has {' and '.join(f'`{kind}`' for kind in kinds) or 'no prompt'}"
        raise LineError(what, "give one of `prompt`, `messages`, `prompt_token_ids`")
    content, name = data.pop(kinds[0]), data.pop("id", unnamed.id)
    images = data.pop("images", [])
    _CHECKS[kinds[0]](content)
    if not isinstance(images, list) or not all(isinstance(path, str) for path in images):
        raise LineError(f"`images` is {json.dumps(images)[:40]}, not a list of paths", 'write {"images": ["a.jpg"]}')
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise LineError(f"`id` is {json.dumps(name)}, neither text nor a whole number")
    return replace(unnamed, id=name, content=content, kind=kinds[0], settings=data, images=tuple(images))


def _check_text(content: Any) -> None:
    if not isinstance(content, str):
        raise LineError(f"`prompt` is {json.dumps(content)[:40]}, not text")
    if not content.strip():
        raise LineError("the prompt is empty")


def _check_messages(content: Any) -> None:
    if not isinstance(content, list) or not content:
        raise LineError("`messages` is not a list of at least one message")
    for index, message in enumerate(content):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            fix = 'write {"role": "user", "content": "..."}'
            raise LineError(f"message {index} has no `role` or no `content`", fix)


def _check_ids(content: Any) -> None:
    if not isinstance(content, list) or not content:
        raise LineError("`prompt_token_ids` is not a list of at least one token id")
    wrong = [token for token in content if isinstance(token, bool) or not isinstance(token, int) or token < 0]
    if wrong:
        raise LineError(f"`prompt_token_ids` has {json.dumps(wrong[0])[:40]}, which is no token id")


_CHECKS: dict[str, Callable[[Any], None]] = {
    "prompt": _check_text,
    "messages": _check_messages,
    "prompt_token_ids": _check_ids,
}


def _twice(prompts: list[Prompt]) -> list[tuple[int, Problem]]:
    """Return a problem for each id that another prompt has already."""
    seen: dict[str | int, Prompt] = {}
    problems = []
    for prompt in prompts:
        first = seen.setdefault(prompt.id, prompt)
        if first is not prompt:
            what = f"the id {json.dumps(prompt.id)} is that of {first.where} too"
            problems.append((prompt.line, Problem(what, prompt.where, "give each prompt an id of its own")))
    return problems
