"""Generation settings as options, with transformers' names."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from trtkit.cli.options import grouped


@dataclass(frozen=True)
class Flag:
    """An option. name: the field of SamplingParams. kind: a type of click; None for a pair of on and off.

    alias: what transformers calls it.
    """

    flag: str
    name: str
    kind: Any
    help: str
    metavar: str | None = None
    many: bool = False
    alias: str = ""


_TEXT = "TEXT"
GROUPS = {
    "Length and stopping": (
        Flag("--max-tokens", "max_tokens", int, "Maximum number of new tokens.", "N", alias="--max-new-tokens"),
        Flag("--min-tokens", "min_tokens", int, "Minimum number of new tokens.", "N", alias="--min-new-tokens"),
        Flag("--stop-strings", "stop", str, "Stop at this text; repeatable.", _TEXT, many=True),
        Flag(
            "--include-stop/--no-include-stop",
            "include_stop_str_in_output",
            None,
            "Include the stop string in the output.",
        ),
        Flag(
            "--eos-token-id",
            "stop_token_ids",
            str,
            "Stop at this token, an id or text; repeatable.",
            "TOKEN",
            many=True,
        ),
        Flag("--ignore-eos/--no-ignore-eos", "ignore_eos", None, "Continue after end-of-sequence tokens."),
    ),
    "Sampling": (
        Flag("--do-sample/--no-do-sample", "do_sample", None, "Sample.  [default: if a sampling option is given]"),
        Flag("--temperature", "temperature", float, "Sampling temperature; 0 for greedy.", "X"),
        Flag("--top-k", "top_k", int, "Sample from the K most likely tokens.", "K"),
        Flag("--top-p", "top_p", float, "Sample from the most likely tokens with total probability P.", "P"),
        Flag("--min-p", "min_p", float, "Drop tokens below P times the best probability.", "P"),
        Flag("--typical-p", "typical_p", float, "Typical sampling with probability mass P.", "P"),
        Flag("--seed", "seed", int, "Seed, for reproducible sampling.", "N"),
        Flag("--repetition-penalty", "repetition_penalty", float, "Penalize repeated tokens; 1 for no penalty.", "X"),
        Flag("--presence-penalty", "presence_penalty", float, "Penalize tokens already in the answer.", "X"),
        Flag("--frequency-penalty", "frequency_penalty", float, "Penalize tokens by how often they occurred.", "X"),
        Flag("--no-repeat-ngram-size", "no_repeat_ngram_size", int, "Never repeat an N-gram.", "N"),
        Flag("--bad-words", "bad_words", str, "Text that must not occur; repeatable.", _TEXT, many=True),
        Flag("--logit-bias", "logit_bias", str, "Add VALUE to a token's logit; repeatable.", "TOKEN=VALUE", many=True),
    ),
    "Constrained output": (
        Flag("--json-schema", "guided_json", str, "Constrain output to a JSON schema.", "FILE|TEXT"),
        Flag("--regex", "guided_regex", str, "Constrain output to a regex.", _TEXT),
        Flag("--grammar", "guided_grammar", str, "Constrain output to a Lark or GBNF grammar.", "FILE"),
        Flag("--choice", "guided_choice", str, "Constrain output to given texts; repeatable.", _TEXT, many=True),
        Flag("--force-words", "force_words", str, "Text that must occur; repeatable.", _TEXT, many=True),
    ),
    "Beam search": (
        Flag("--num-beams", "num_beams", int, "Number of beams; 1 for no beam search.", "N"),
        Flag("--num-beam-groups", "num_beam_groups", int, "Groups of beams, for answers that differ.", "N"),
        Flag("--diversity-penalty", "diversity_penalty", float, "Penalize tokens of earlier groups.", "X"),
        Flag("--length-penalty", "length_penalty", float, "Beam search: above 0 prefers longer answers.", "X"),
        Flag(
            "--early-stopping", "early_stopping", click.Choice(["true", "false", "never"]), "Beam search: when to stop."
        ),
    ),
    "Answers": (
        Flag("--num-return-sequences", "n", int, "Answers per prompt.", "N"),
        Flag("--logprobs", "logprobs", int, "Report the N most likely tokens at each position.", "N"),
        Flag("--prompt-logprobs", "prompt_logprobs", int, "The same for prompt tokens.", "N"),
        Flag("--adapter", "adapter", str, "Answer with this LoRA adapter.", "NAME"),
        Flag(
            "--skip-special-tokens/--no-skip-special-tokens",
            "skip_special_tokens",
            None,
            "Omit special tokens from the output.",
        ),
    ),
}
"""Options by purpose, as help lists them."""
FLAGS = tuple(flag for flags in GROUPS.values() for flag in flags)


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add all options to a command; they arrive as keyword arguments named as in SamplingParams."""
    for title, flags in reversed(GROUPS.items()):
        command = grouped(title, *map(_option, flags))(command)
    return command


def _option(flag: Flag) -> Callable[[Callable[..., None]], Callable[..., None]]:
    words = tuple(filter(None, (flag.flag, flag.alias, flag.name)))
    if flag.kind is None:
        return click.option(*words, default=None, help=flag.help)
    return click.option(*words, type=flag.kind, metavar=flag.metavar, multiple=flag.many, help=flag.help)


def flag_of(name: str) -> str:
    """Return the option that sets a field, as users type it."""
    return next((flag.flag.partition("/")[0] for flag in FLAGS if flag.name == name), name)


@contextlib.contextmanager
def faults_by_option() -> Iterator[None]:
    """Name the options if the settings they set are invalid. Raises PromptsError."""
    from trtkit.llm import PromptsError
    from trtkit.llm.sampling.checks import SettingsError

    try:
        yield
    except SettingsError as error:
        problems = [replace(problem, where=flag_of(problem.where)) for problem in error.problems]
        raise PromptsError("the options cannot be used", problems) from None


def read_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings in their JSON form. Raises click.UsageError."""
    settings = {name: value for name, value in options.items() if value is not None and value != ()}
    return {name: _READERS[name](value) if name in _READERS else _listed(value) for name, value in settings.items()}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tokens(values: tuple[str, ...]) -> list[int | str]:
    return [_token(value) for value in values]


def _token(value: str) -> int | str:
    return int(value) if value.isdecimal() else value


def _biases(values: tuple[str, ...]) -> dict[int | str, float]:
    return dict(_bias(value) for value in values)


def _bias(value: str) -> tuple[int | str, float]:
    token, equals, bias = value.rpartition("=")
    try:
        if not equals or not token:
            raise ValueError
        return _token(token), float(bias)
    except ValueError:
        raise click.UsageError(f"--logit-bias `{value}` is not TOKEN=VALUE, such as `15=-100`") from None


def _schema(value: str) -> str:
    """Return the schema: the text if it is an object or `true`, else a file's contents."""
    return value if value.lstrip().startswith("{") or value.strip() == "true" else _file("--json-schema", value)


def _grammar(value: str) -> str:
    return _file("--grammar", value)


def _file(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise click.UsageError(f"{flag} `{path}` cannot be read: {reason}") from None


def _early_stopping(value: str) -> bool | str:
    return value if value == "never" else value == "true"


_READERS: dict[str, Callable[[Any], Any]] = {
    "stop_token_ids": _tokens,
    "logit_bias": _biases,
    "guided_json": _schema,
    "guided_grammar": _grammar,
    "early_stopping": _early_stopping,
}
