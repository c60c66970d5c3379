"""Trial of a tokenizer's patterns and chat template in a resource-limited child process before their first use.

Both are programs by the model's author: a pattern may backtrack for ever, a template may loop or fill all memory. The
trial finds those that do so on ordinary text, but not those that wait for a certain word.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trtkit.errors import GenerationError, SourceError
from trtkit.files import recalled, remember, sha256_of
from trtkit.sources.gguf.tokenizer import known_patterns
from trtkit.sources.safetensors_file import read_json
from trtkit.threads import import_paths

LIMIT_S, LIMIT_GIB = 20, 6
"""CPU seconds and address space of the child; a sound tokenizer takes about two seconds and one GiB."""
_WALL_S, _MEMORY = 120, "tried.json"
_EXCEEDED = 3
_ENDINGS = {_EXCEEDED, *(-number for number in (signal.SIGXCPU, signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV))}
"""Exit statuses of a child that hit its limits."""
# Classes whose behavior is entirely in tokenizer.json: loaded directly, in a third of AutoTokenizer's time.
_PLAIN_CLASSES = {"PreTrainedTokenizerFast", "TokenizersBackend"}
_TURNS = [{"role": role, "content": "Why is the sky blue?"} for role in ("user", "assistant", "user")]
_RUNS = [text * 2000 for text in ("a", "A", "1", " ", "\n", ".", "é", "中", "a ", "aA1 .\n")]


def try_patterns(folder: Path) -> None:
    """Tokenize ordinary texts in a child process if `tokenizer.json` has patterns of no known tokenizer.

    Raises GenerationError for patterns that exceed the limits.
    """
    file = folder / "tokenizer.json"
    try:
        is_known = known_patterns().issuperset(_patterns(json_settings(file)))
    except (GenerationError, RecursionError):  # too large, or damaged: whoever loads it may still read it
        is_known = False
    if not is_known:
        _try(folder, "patterns", file)


def try_template(folder: Path) -> None:
    """Render short conversations in a child process. Raises GenerationError for a template that exceeds the limits."""
    file = folder / "chat_template.jinja"
    _try(folder, "template", file if file.is_file() else folder / "tokenizer_config.json")


def load_tokenizer(folder: Path) -> Any:
    """Return transformers' tokenizer of a folder, whatever its patterns. Raises transformers' errors."""
    name = json_settings(folder / "tokenizer_config.json").get("tokenizer_class")
    if name in _PLAIN_CLASSES and (folder / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast as Loader
    else:
        from transformers import AutoTokenizer as Loader
    return Loader.from_pretrained(folder, local_files_only=True)


def json_settings(path: Path) -> dict[str, Any]:
    """Return a JSON object, or an empty one if the file does not exist. Raises GenerationError for anything else."""
    if not path.is_file():
        return {}
    try:
        return read_json(path)
    except SourceError as error:
        raise GenerationError(error.what, error.where, "build the bundle again") from None


def _try(folder: Path, kind: str, file: Path) -> None:
    if (tried := _digest(folder, kind)) in recalled(_MEMORY):
        return
    command = [sys.executable, "-P", "-m", __name__, kind, str(folder), str(LIMIT_S)]
    what = {"patterns": "the tokenizer's patterns take", "template": "the chat template takes"}[kind]
    with contextlib.suppress(subprocess.TimeoutExpired):
        ended = subprocess.run(
            command,
            env=os.environ | import_paths(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_WALL_S,
            check=False,
        )
        if ended.returncode == 0:
            remember(_MEMORY, tried, LIMIT_S)
            return
        if ended.returncode not in _ENDINGS:
            reason = (ended.stderr.strip() or "no output").splitlines()[-1]
            raise GenerationError(f"could not be tried in a process of its own: {reason}", str(file))
    limits = f"{LIMIT_S} s of CPU time or {LIMIT_GIB} GiB of memory"
    fix = "use a model whose tokenizer files you trust"
    raise GenerationError(f"{what} more than {limits} for a short text", str(file), fix)


def _digest(folder: Path, kind: str) -> str:
    """Return a digest of what a trial's result depends on: the tokenizer's files, and the libraries that read them."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".jinja", ".model") and path.is_file())
    facts = [kind, *(version(name) for name in ("transformers", "tokenizers"))]
    facts += [f"{path.name} {sha256_of(path)}" for path in files]
    return sha256("\n".join(facts).encode()).hexdigest()


def _patterns(data: object) -> Iterator[str]:
    """Yield the regular expressions in a tokenizer.json, outside its vocabulary and merges."""
    if isinstance(data, dict):
        if isinstance(data.get("Regex"), str):
            yield data["Regex"]
        for name, value in data.items():
            if name not in ("vocab", "merges"):
                yield from _patterns(value)
    elif isinstance(data, list):
        for value in data:
            if isinstance(value, (dict, list)):
                yield from _patterns(value)


def _limit(cpu_s: int) -> None:
    """Make the system kill this process at the limits."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_GIB << 30, LIMIT_GIB << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def _main(kind: str, folder: Path, cpu_s: int) -> None:
    """Do what the parent process will do, on ordinary text. Ordinary errors are left to the parent."""
    _limit(cpu_s)
    try:
        tokenizer = load_tokenizer(folder)
        if kind == "patterns":
            for text in _RUNS:
                for end in ("", "!"):
                    tokenizer.encode(text + end)
        else:
            for messages in (_TURNS[:1], _TURNS):
                tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except MemoryError:
        sys.exit(_EXCEEDED)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    except BaseException:  # the tokenizers library panics at its own limit of a pattern's retries
        sys.exit(_EXCEEDED)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
