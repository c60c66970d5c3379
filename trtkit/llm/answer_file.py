"""Answers to many prompts in a JSON Lines file: appended when complete, continued after a kill, sorted at the end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.errors import GenerationError, RequestError
from trtkit.files import open_lock, open_regular, read_text, replace_file, sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedReader

    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.prompt_lines import PromptLine


@dataclass(frozen=True)
class AnswerSource:
    """What a file's answers depend on. bundle, prompts: digests. settings: options that are set, by name."""

    bundle: str
    prompts: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, bundle: Bundle, prompts: Sequence[PromptLine], settings: dict[str, Any]) -> AnswerSource:
        """Return the source of prompts, images and recordings, by content. Raises RequestError for a missing file."""
        manifest, as_json = bundle.manifest, json.loads(json.dumps(settings))
        files = sorted(file.sha256 for file in manifest.files if file.path != "network.json")
        lines = [
            [prompt.id, prompt.kind, prompt.content, prompt.settings, prompt.language, prompt.task]
            for prompt in prompts
        ]
        paths = {path for prompt in prompts for path in prompt.images}
        paths |= {str(prompt.content) for prompt in prompts if prompt.kind == "audio"}
        contents = {path: _file_digest(path) for path in sorted(paths)}
        images = [[contents[path] for path in prompt.images] for prompt in prompts]
        heard = [contents.get(str(prompt.content)) for prompt in prompts if prompt.kind == "audio"]
        return cls(_digest([manifest.build_key, files]), _digest([lines, images, heard]), as_json)

    def changes_from(self, earlier: AnswerSource) -> list[str]:
        """Return the names of what differs from an earlier run's source."""
        changes = [f"the {name}" for name in ("bundle", "prompts") if getattr(self, name) != getattr(earlier, name)]
        names = sorted({*self.settings, *earlier.settings})
        return changes + [f"`{name}`" for name in names if self.settings.get(name) != earlier.settings.get(name)]


class AnswerFile:
    """The answers to prompts in `path`, one line each, locked by this process until closed.

    ids: of the prompts. done: numbers of answered prompts; failed: those whose answer is an error. What the answers
    depend on is recorded in `<path>.run`. Raises RequestError if the file holds answers to anything else,
    GenerationError if another process writes it.
    """

    def __init__(self, path: Path, source: AnswerSource, ids: Sequence[str | int], *, restarts: bool = False) -> None:
        self.path, self._ids = path.resolve() if path.is_symlink() else path, ids
        self._run = self.path.with_name(f"{path.name}.run")
        self.done: set[int] = set()
        self.failed: set[int] = set()
        self._is_in_order = True
        self._descriptor = self._open()
        try:
            self._begin(source, restarts=restarts)
        except BaseException:
            os.close(self._descriptor)
            raise

    def add(self, index: int, answer: dict[str, Any]) -> None:
        """Append the answer to prompt `index`; after this it is in the file, whatever happens to the process."""
        line = {"index": index, "id": self._ids[index], **answer}
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        with self._faults():
            while data:
                data = data[os.write(self._descriptor, data) :]
        self._note(line)

    def finish(self) -> None:
        """Sort the lines by prompt, once all are there."""
        assert len(self.done) == len(self._ids)
        with self._faults():
            if self._is_in_order:
                os.fsync(self._descriptor)
            else:
                self._sort()

    def close(self) -> None:
        """Release the lock. A file without answers is removed."""
        if not self.done:
            self.path.unlink(missing_ok=True)
            self._run.unlink(missing_ok=True)
        os.close(self._descriptor)

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> int:
        """Open and lock the file; retry if another process has replaced it in the meantime."""
        if self.path.exists() and not self.path.is_file():
            raise RequestError("is not a file", str(self.path), "choose another `--output`")
        with self._faults():
            while True:
                descriptor = open_lock(self.path)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if self.path.exists() and os.path.samestat(os.fstat(descriptor), self.path.lstat()):
                        return descriptor
                except BlockingIOError:
                    os.close(descriptor)
                    what, fix = "another process is writing these answers", "wait for it, or choose another `--output`"
                    raise GenerationError(what, str(self.path), fix) from None
                os.close(descriptor)

    def _begin(self, source: AnswerSource, *, restarts: bool) -> None:
        """Read existing answers, or start a new file."""
        with self._faults():
            if restarts:
                os.ftruncate(self._descriptor, 0)
            if os.fstat(self._descriptor).st_size:
                self._check_source(source)
                self._read()
            else:
                replace_file(self._run, json.dumps(asdict(source), ensure_ascii=False, indent=1).encode() + b"\n")
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def _check_source(self, source: AnswerSource) -> None:
        """Raise RequestError if the existing answers are to other prompts, or of another bundle or settings."""
        fix = "choose another `--output`, or replace these answers with `--restart`"
        try:
            earlier = AnswerSource(**json.loads(read_text(self._run)))
        except (OSError, ValueError, TypeError):
            raise RequestError(f"exists, but `{self._run.name}` is missing or damaged", str(self.path), fix) from None
        changes = source.changes_from(earlier)
        if changes:
            what = f"holds answers of an earlier run that differs in: {', '.join(changes)}"
            raise RequestError(what, str(self.path), fix)

    def _read(self) -> None:
        """Read existing answers; an incomplete last line is cut off."""
        with open_regular(self.path) as file:
            end = 0
            for number, data in enumerate(file, 1):
                if not data.endswith(b"\n"):
                    os.ftruncate(self._descriptor, end)
                    return
                end += len(data)
                try:
                    self._note(json.loads(data))
                except (ValueError, KeyError, TypeError, IndexError):
                    fix = "choose another `--output`, or replace these answers with `--restart`"
                    raise RequestError("not an answer of this run", f"{self.path}:{number}", fix) from None

    def _note(self, line: dict[str, Any]) -> None:
        """Record a line of the file. Raises ValueError if it answers no prompt, or a prompt that has an answer."""
        index = line["index"]
        if index in self.done or isinstance(index, bool) or index < 0 or line["id"] != self._ids[index]:
            raise ValueError
        self._is_in_order &= index == len(self.done)
        self.done.add(index)
        answers = line.get("outputs", [line])
        if any(answer["finish_reason"] == "error" for answer in answers):
            self.failed.add(index)

    def _sort(self) -> None:
        """Replace the file by a sorted one."""
        ordered = self.path.with_name(f".{self.path.name}.ordered")
        ordered.unlink(missing_ok=True)  # left over from a run that was killed here
        with open_regular(self.path) as file, ordered.open("xb") as copy:
            for line in _in_order(file):
                copy.write(line)
            copy.flush()
            os.fsync(copy.fileno())
        ordered.replace(self.path)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn write errors into errors that name the file."""
        try:
            yield
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            fix = "choose a writable file with enough space"
            raise GenerationError(f"cannot be written: {reason}", str(self.path), fix) from None


def _in_order(file: BufferedReader) -> Iterator[bytes]:
    """Return a file's lines by their `index`."""
    offsets, offset = {}, 0
    for line in file:
        offsets[json.loads(line)["index"]] = offset
        offset += len(line)
    for index in sorted(offsets):
        file.seek(offsets[index])
        yield file.readline()


def _digest(data: Any) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _file_digest(path: str) -> str:
    """Return the digest of an image's or a recording's file."""
    try:
        return sha256_of(Path(path))
    except OSError as error:
        raise RequestError(f"cannot be read: {(error.strerror or str(error)).lower()}", path) from None
