"""Traces of real traffic: Mooncake's JSON lines and the CSV of Azure's LLM inference traces.

Mooncake: `{"timestamp": 1000, "input_length": 300, "output_length": 40, "hash_ids": [123, 456]}`, times in ms; equal
hash ids are equal blocks of 512 tokens at the start of prompts. Azure: columns TIMESTAMP, ContextTokens,
GeneratedTokens.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Return a trace's requests in the order of their times, the first `limit` of them. Raises BenchError."""
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
