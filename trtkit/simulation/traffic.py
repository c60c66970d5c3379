"""Requests to simulate: random by stated distributions, or from a trace."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trtkit.benchmarking.workload import read_trace
from trtkit.errors import RequestError, SimulationError
from trtkit.llm.scheduler import SchedulingParams
from trtkit.simulation.requests import BLOCK_TOKENS, Traffic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.arrays import Array

Pattern = Literal["poisson", "bursty", "constant"]
PATTERNS: tuple[Pattern, ...] = ("poisson", "bursty", "constant")
_FIX = 'write {"arrival_s": 0.5, "input_tokens": 300, "output_tokens": 40} on each line'


@dataclass(frozen=True)
class TrafficOptions:
    """Random requests. rate: per second. cv: coefficient of variation of the gaps between arrivals, gamma distributed.

    input_tokens, output_tokens: means; lengths with a deviation are log-normal. shared_tokens: length of the prefix of
    each prompt, one of `prefixes` different ones.
    """

    rate: float
    count: int = 1000
    pattern: Pattern = "poisson"
    cv: float = 4.0
    input_tokens: int = 512
    output_tokens: int = 128
    input_deviation: float = 0.0
    output_deviation: float = 0.0
    shared_tokens: int = 0
    prefixes: int = 1
    seed: int = 0


def random_traffic(options: TrafficOptions, longest: int) -> Traffic:
    """Return random requests, none longer than `longest` tokens."""
    r = np.random.default_rng(options.seed)
    mean_s = 1 / options.rate
    if options.pattern == "constant":
        gaps = np.full(options.count, mean_s)
    else:
        shape = 1.0 if options.pattern == "poisson" else options.cv**-2
        gaps = r.gamma(shape, mean_s / shape, options.count)
    own_tokens = options.input_tokens - options.shared_tokens
    if own_tokens < 1:
        what = f"prompts of {options.input_tokens} tokens cannot share {options.shared_tokens}"
        raise SimulationError(what, "--shared-tokens", "share fewer tokens than a prompt has")
    inputs = options.shared_tokens + _lengths(r, options.count, own_tokens, options.input_deviation)
    outputs = _lengths(r, options.count, options.output_tokens, options.output_deviation)
    outputs = np.minimum(outputs, longest - 1)
    inputs = np.minimum(inputs, longest - outputs)
    if not options.shared_tokens:
        return Traffic(np.cumsum(gaps), inputs, outputs)
    hashes = [(int(which),) for which in r.integers(0, options.prefixes, options.count)]
    return Traffic(np.cumsum(gaps), inputs, outputs, hashes, block_tokens=options.shared_tokens)


def _lengths(r: np.random.Generator, count: int, mean: float, deviation: float) -> Array:
    """Return random lengths of a mean and a deviation, at least 1."""
    if not deviation:
        return np.full(count, round(mean), np.int64)
    variance = math.log(1 + (deviation / mean) ** 2)
    drawn = r.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), count)
    lengths: Array = np.maximum(1, np.rint(drawn)).astype(np.int64)
    return lengths


def read_traffic(path: Path, speed: float = 1.0, limit: int | None = None) -> Traffic:
    """Return the first `limit` requests of a trace, sped up by `speed`. Raises SimulationError, BenchError.

    Its lines are JSON objects with `arrival_s`, `input_tokens` and `output_tokens`, and optionally `hash_ids` of the
    prompt's blocks of 512 tokens, `priority`, `user` and `deadline_s`; or it is a trace that `trtkit bench` reads.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SimulationError(f"the trace cannot be read: {reason}", str(path), "check the path") from None
    if "arrival_s" not in first:
        rows = read_trace(str(path), limit)
        times = np.array([row.timestamp_ms / 1e3 for row in rows])
        sizes = np.array([row.input_tokens for row in rows]), np.array([row.output_tokens for row in rows])
        hashes = [row.hash_ids for row in rows]
        return Traffic((times - times[0]) / speed, *sizes, hashes if any(hashes) else ())
    lines = enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1)
    entries = sorted(
        (_entry(line, f"{path}:{number}") for number, line in lines if line.strip()), key=lambda entry: entry.at_s
    )
    return _of_entries(entries[:limit], speed)


@dataclass(frozen=True)
class _Entry:
    at_s: float
    inputs: int
    outputs: int
    hashes: tuple[int, ...]
    scheduling: SchedulingParams


def _entry(line: str, where: str) -> _Entry:
    """Return a line's request. Raises SimulationError."""
    try:
        data: Mapping[str, object] = json.loads(line)
        at_s, inputs, outputs = float(data["arrival_s"]), int(data["input_tokens"]), int(data["output_tokens"])  # type: ignore[arg-type, call-overload]
        late = data.get("deadline_s")
        scheduling = SchedulingParams(
            int(data.get("priority", 0)),  # type: ignore[call-overload]
            str(data.get("user", "")),
            None if late is None else float(late),  # type: ignore[arg-type]
        )
        hashes = tuple(int(block_hash) for block_hash in data.get("hash_ids") or ())  # type: ignore[attr-defined]
    except KeyError as error:
        raise SimulationError(f"not a request: {error.args[0]} is missing", where, _FIX) from None
    except RequestError as error:
        raise SimulationError(error.what, where, error.fix) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise SimulationError(f"not a request: {error}", where, _FIX) from None
    if inputs < 1 or outputs < 1 or not 0 <= at_s < math.inf:
        what = f"a request of {inputs} input and {outputs} output tokens at {at_s:g} s"
        raise SimulationError(what, where, "give at least one token of each, and a time of 0 or more")
    return _Entry(at_s, inputs, outputs, hashes, scheduling)


def _of_entries(entries: list[_Entry], speed: float) -> Traffic:
    times = np.array([entry.at_s for entry in entries])
    return Traffic(
        (times - times[0]) / speed,
        np.array([entry.inputs for entry in entries]),
        np.array([entry.outputs for entry in entries]),
        [entry.hashes for entry in entries] if any(entry.hashes for entry in entries) else (),
        [entry.scheduling for entry in entries],
        BLOCK_TOKENS,
    )
