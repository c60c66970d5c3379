"""Requests for a language model: synthetic prompts with shared prefixes, or a trace of real traffic."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.bundle.manifest import Manifest


@dataclass(frozen=True)
class Work:
    """One request: a prompt's tokens, and the exact number of tokens in its answer."""

    prompt_ids: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True)
class Lengths:
    """Lengths of synthetic prompts. deviations are of a normal distribution, cut off at one token.

    shared_tokens: tokens at the start of each prompt that come from one of `prefixes` prefixes, in turn.
    """

    input_tokens: int = 128
    output_tokens: int = 32
    input_deviation: float = 0.0
    output_deviation: float = 0.0
    shared_tokens: int = 0
    prefixes: int = 1


def synthetic_work(lengths: Lengths, count: int, vocab_size: int, seed: int = 0) -> list[Work]:
    """Return `count` requests of random tokens below `vocab_size`; deterministic for a seed.

    Raises BenchError if a prompt is shorter than its shared prefix.
    """
    if lengths.shared_tokens > lengths.input_tokens:
        what = f"{lengths.shared_tokens} shared tokens do not fit in prompts of {lengths.input_tokens}"
        raise BenchError(what, "--shared-tokens", "make prompts longer (--input-len)")
    generator = np.random.default_rng(seed)
    begins = generator.integers(0, vocab_size, (max(1, lengths.prefixes), lengths.shared_tokens)).tolist()
    inputs = _drawn(lengths.input_tokens, lengths.input_deviation, count, generator)
    outputs = _drawn(lengths.output_tokens, lengths.output_deviation, count, generator)
    work = []
    for index, (size, answer) in enumerate(zip(inputs, outputs, strict=True)):
        begin = begins[index % len(begins)]
        drawn = generator.integers(0, vocab_size, max(0, size - len(begin))).tolist()
        work.append(Work((*begin, *drawn), answer))
    return work


def round_seed(seed: int, number: int) -> int:
    """Return a different seed for each round; the warm-up's number is -1."""
    return seed * 1009 + number + 1


def drawn_tokens(manifest: Manifest) -> int:
    """Return the upper bound of synthetic token ids: image placeholders are not drawn."""
    logits = next(output for output in manifest.outputs if output.name == "logits")
    size = logits.shape[-1]
    return size if manifest.images is None else min(size, manifest.images.image_token_id)


def traced_work(rows: Sequence[TraceRow], vocab_size: int, seed: int = 0) -> list[Work]:
    """Return a trace's requests with synthetic tokens: blocks with equal hash ids have equal tokens."""
    generator = np.random.default_rng(seed)
    work = []
    for row in rows:
        ids: list[int] = []
        for block_hash in row.hash_ids:
            block_generator = np.random.default_rng([seed, block_hash % 2**32])
            ids += block_generator.integers(0, vocab_size, BLOCK_TOKENS).tolist()
        ids = ids[: row.input_tokens]
        rest = generator.integers(0, vocab_size, row.input_tokens - len(ids)).tolist()
        work.append(Work((*ids, *rest), row.output_tokens))
    return work


def check_fits(work: Sequence[Work], max_length: int, where: str) -> None:
    """Raise BenchError if a prompt and its answer exceed a slot."""
    longest = max(work, key=lambda item: len(item.prompt_ids) + item.output_tokens)
    inputs, outputs = len(longest.prompt_ids), longest.output_tokens
    if inputs + outputs > max_length:
        what = f"{inputs} input and {outputs} output tokens exceed the {max_length} that a slot holds"
        raise BenchError(what, where, "use fewer, or build with a larger `llm.max_sequence_length`")


def _drawn(mean: int, deviation: float, count: int, generator: np.random.Generator) -> list[int]:
    """Return lengths of at least 1."""
    drawn = np.rint(generator.normal(mean, deviation, count)) if deviation else np.full(count, mean)
    return [max(1, int(length)) for length in drawn]


BLOCK_TOKENS = 512
_MOONCAKE = 'write {"timestamp": 0, "input_length": 300, "output_length": 40} on each line'
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True)
class TraceRow:
    """One request of a trace. hash_ids: of its prompt's first blocks of BLOCK_TOKENS tokens."""

    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: str, limit: int | None = None) -> list[TraceRow]:
    """Return a trace's requests sorted by time, at most `limit` of them. Raises BenchError.

    Mooncake: `{"timestamp": 1000, "input_length": 300, "output_length": 40, "hash_ids": [123, 456]}`, times in ms;
    equal hash ids are equal blocks of 512 tokens at the start of prompts. Azure: columns TIMESTAMP, ContextTokens,
    GeneratedTokens.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BenchError(f"the trace cannot be read: {reason}", path, "check the path") from None
    rows = _azure(text, path) if text.startswith(_AZURE[0]) else _mooncake(text, path)
    if not rows:
        raise BenchError("the trace holds no requests", path, _MOONCAKE)
    return sorted(rows, key=lambda row: row.timestamp_ms)[:limit]


def _mooncake(text: str, path: str) -> list[TraceRow]:
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return [_mooncake_row(line, f"{path}:{number}") for number, line in lines]


def _mooncake_row(line: str, where: str) -> TraceRow:
    try:
        data = json.loads(line)
        hashes = tuple(int(number) for number in data.get("hash_ids") or ())
        row = TraceRow(float(data["timestamp"]), int(data["input_length"]), int(data["output_length"]), hashes)
    except (ValueError, TypeError, AttributeError) as error:
        raise BenchError(f"not a trace request: {error}", where, _MOONCAKE) from None
    except KeyError as error:
        raise BenchError(f"not a trace request: {error.args[0]} is missing", where, _MOONCAKE) from None
    return _checked(row, where)


def _azure(text: str, path: str) -> list[TraceRow]:
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in _AZURE if name not in (reader.fieldnames or ())]
    if missing:
        raise BenchError(f"the trace has no column `{missing[0]}`", f"{path}:1", f"give {', '.join(_AZURE)}")
    return [_azure_row(row, f"{path}:{number}") for number, row in enumerate(reader, 2)]


def _azure_row(row: Mapping[str, str], where: str) -> TraceRow:
    try:
        milliseconds = datetime.fromisoformat(row[_AZURE[0]][:26].rstrip()).timestamp() * 1e3
        request = TraceRow(milliseconds, int(row[_AZURE[1]]), int(row[_AZURE[2]]))
    except (ValueError, TypeError) as error:
        fix = "write 2023-11-16 18:15:46.6805900,374,44"
        raise BenchError(f"not a trace request: {error}", where, fix) from None
    return _checked(request, where)


def _checked(row: TraceRow, where: str) -> TraceRow:
    if row.input_tokens < 1 or row.output_tokens < 1:
        what = f"a request of {row.input_tokens} input and {row.output_tokens} output tokens"
        raise BenchError(what, where, "a request needs at least one of each: remove the line")
    if not -1e15 < row.timestamp_ms < 1e15:
        raise BenchError(f"a request at {row.timestamp_ms} ms", where, "give a finite time")
    return row
