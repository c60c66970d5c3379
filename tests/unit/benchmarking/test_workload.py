"""Prompts made up, shared beginnings, traces of two kinds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trtkit.benchmarking.workload import Lengths, TraceRow, Work, check_fits, read_trace, synthetic_work, traced_work
from trtkit.errors import BenchError

if TYPE_CHECKING:
    from pathlib import Path


def test_lengths_are_as_asked_and_tokens_are_known_to_the_model() -> None:
    made = synthetic_work(Lengths(50, 7), 20, vocab_size=30)
    assert {(len(each.prompt_ids), each.output_tokens) for each in made} == {(50, 7)}
    assert {token for each in made for token in each.prompt_ids} == set(range(30))
    assert made == synthetic_work(Lengths(50, 7), 20, vocab_size=30) != synthetic_work(Lengths(50, 7), 20, 30, seed=1)


def test_lengths_spread_around_their_means() -> None:
    made = synthetic_work(Lengths(100, 40, 20, 10), 3000, vocab_size=9)
    inputs, outputs = np.array([(len(each.prompt_ids), each.output_tokens) for each in made]).T
    assert (inputs.mean(), inputs.std()) == (pytest.approx(100, abs=2), pytest.approx(20, abs=1))
    assert (outputs.mean(), outputs.std()) == (pytest.approx(40, abs=1), pytest.approx(10, abs=0.5))
    assert min(len(each.prompt_ids) for each in synthetic_work(Lengths(1, 1, 50), 100, 9)) == 1


def test_prompts_share_their_beginnings_in_turn() -> None:
    made = synthetic_work(Lengths(32, 1, shared_tokens=24, prefixes=2), 4, vocab_size=1000)
    begins = [each.prompt_ids[:24] for each in made]
    assert begins[0] == begins[2] != begins[1] == begins[3]
    assert len({each.prompt_ids[24:] for each in made}) == 4
    whole = synthetic_work(Lengths(24, 1, shared_tokens=24), 3, vocab_size=1000)
    assert len({each.prompt_ids for each in whole}) == 1


def test_more_shared_than_there_is_is_refused() -> None:
    with pytest.raises(BenchError) as caught:
        synthetic_work(Lengths(8, 1, shared_tokens=9), 1, 10)
    assert str(caught.value) == (
        "--shared-tokens: 9 shared tokens do not fit in prompts of 8\nfix: make prompts longer (--input-len)"
    )


def test_a_request_longer_than_a_slot_is_refused() -> None:
    check_fits([Work((1,) * 60, 4)], 64, "llama")
    with pytest.raises(BenchError, match="61 input and 4 output tokens exceed the 64 that a slot holds"):
        check_fits([Work((1, 2), 3), Work((1,) * 61, 4)], 64, "llama")


def test_a_mooncake_trace(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"timestamp": 27000, "input_length": 600, "output_length": 3, "hash_ids": [46, 47]},
        {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [46, 2**40]},
        {"timestamp": 28000, "input_length": 7, "output_length": 1},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    found = read_trace(str(path))
    assert found[0] == TraceRow(1000, 1100, 5, (46, 2**40))
    assert [row.timestamp_ms for row in found] == [1000, 27000, 28000]
    assert read_trace(str(path), limit=2) == found[:2]
    first, second, third = traced_work(found, vocab_size=5000)
    assert [len(each.prompt_ids) for each in (first, second, third)] == [1100, 600, 7]
    assert [each.output_tokens for each in (first, second, third)] == [5, 3, 1]
    assert first.prompt_ids[:512] == second.prompt_ids[:512]
    assert first.prompt_ids[512:600] != second.prompt_ids[512:600]


def test_azures_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    path.write_text(f"{head}2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,110,27\n")
    first, second = read_trace(str(path))
    assert (first.input_tokens, first.output_tokens, second.input_tokens, second.output_tokens) == (4808, 10, 110, 27)
    assert second.timestamp_ms - first.timestamp_ms == pytest.approx(52, abs=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the trace holds no requests"),
        ("{}", "trace:1: not a trace request: timestamp is missing"),
        ("\n[1]", "trace:2: not a trace request: 'list' object has no attribute 'get'"),
        ("x", "trace:1: not a trace request: Expecting value: line 1 column 1 (char 0)"),
        (
            '{"timestamp": 1, "input_length": 0, "output_length": 2}',
            "trace:1: a request of 0 input and 2 output tokens",
        ),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 2}', "trace:1: a request at nan ms"),
        ("TIMESTAMP,ContextTokens\n", "trace:1: the trace has no column `GeneratedTokens`"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2", "trace:2: not a trace request: Invalid isoformat"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(BenchError) as caught:
        read_trace(str(path))
    assert str(caught.value).replace(f"{tmp_path}/", "").removeprefix("trace: ").startswith(message)


def test_a_trace_that_is_not_there_is_refused() -> None:
    with pytest.raises(BenchError, match="the trace cannot be read: No such file or directory"):
        read_trace("nowhere.jsonl")
