"""Seeded answers over 49,152 tokens: rounding differs by rows, caches and ranks, drawn tokens do not."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import tiny_llm
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

TOKENS = 16
FLAT: list[dict[str, Any]] = [
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.02},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 50},
    {"temperature": 1.2, "typical_p": 0.9},
]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model in fp32 with linear caches, with paged ones, and on two ranks."""
    folder = tmp_path_factory.mktemp("seeded")
    tiny_llm.save(folder / "hf", vocab_size=49_152)
    built = {}
    sizes = "max_batch_size: 8, max_sequence_length: 64, max_prefill_length: 16"
    (folder / "m.yaml").write_text(f"source: {{hf: hf}}\nprecision: fp32\nllm: {{{sizes}}}\n")
    for kind, change in {"linear": "llm.kv=linear", "paged": "llm.kv=paged", "ranks": "parallel.tensor=2"}.items():
        config = load_config(str(folder / "m.yaml"), [change])
        built[kind] = build_bundle(config, folder / kind, new_runner()).bundle.path
    return built


def token_ids(llm: LLM, prompts: list[Any], params: list[SamplingParams]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]


@pytest.mark.parametrize("count", [25, pytest.param(1500, marks=pytest.mark.slow)])
def test_rows_caches_and_ranks_change_no_seeded_answer(bundles: dict[str, Path], count: int) -> None:
    prompts = [{"prompt_token_ids": [5 + number % 300, 7, 11 + number % 13]} for number in range(count)]
    params = [
        SamplingParams(seed=number, max_tokens=TOKENS, ignore_eos=True, **FLAT[number % len(FLAT)])
        for number in range(count)
    ]
    answers: dict[str, list[list[int]]] = {}
    for kind, bundle in bundles.items():
        with LLM(bundle, runtime="reference") as llm:
            answers[f"{kind}, together"] = token_ids(llm, prompts, params)
            if kind != "ranks":  # whose calls take long
                each = zip(prompts, params, strict=True)
                answers[f"{kind}, alone"] = [token_ids(llm, [prompt], [one])[0] for prompt, one in each]
    first = answers["linear, alone"]
    assert len({tuple(tokens) for tokens in first}) > 0.9 * count
    for kind, tokens in answers.items():
        assert sum(ours != theirs for ours, theirs in zip(tokens, first, strict=True)) == 0, kind


@pytest.mark.parametrize(
    "kind", ["linear", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("paged", "ranks"))]
)
def test_a_run_that_goes_on_where_it_was_killed_changes_no_seeded_answer(
    bundles: dict[str, Path], kind: str, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    """Requests stand in other rows, with other neighbours, than in a run without an end."""
    lines = [
        {"prompt_token_ids": [5 + number, 7, 11 + number % 13], "seed": number, **FLAT[number % len(FLAT)]}
        for number in range(40)
    ]
    (workspace / "p.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    words = ["generate", bundles[kind], "--prompts", "p.jsonl", "--max-tokens", TOKENS, "-q", "--no-chat"]
    assert trtkit(*words, "--output", "a.jsonl").code == 0
    whole = (workspace / "a.jsonl").read_bytes()
    ends = [match.end() for match in re.finditer(b"\n", whole)]
    for count in (3, 21):
        (workspace / "a.jsonl").write_bytes(whole[: ends[count] + 9])  # with a torn line
        ran = trtkit(*words, "--output", "a.jsonl", "--json")
        assert (ran.code, ran.json()["answered_before"]) == (0, count + 1)
        assert (workspace / "a.jsonl").read_bytes() == whole
