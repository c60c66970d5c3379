"""A seed's answers over a vocabulary of 49,152: rounding differs by batch and caches, the drawn tokens do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests import tiny_llm
from trtkit import LLM, SamplingParams
from trtkit.config.load import load_config
from trtkit.engine.build import build_bundle
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from pathlib import Path

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
    """The same model in fp32 with linear and with paged caches."""
    folder = tmp_path_factory.mktemp("seeded")
    tiny_llm.save(folder / "hf", vocab_size=49_152)
    built = {}
    for kv in ("linear", "paged"):
        sizes = f"max_batch_size: 8, max_sequence_length: 64, max_prefill_length: 16, kv: {kv}"
        (folder / f"{kv}.yaml").write_text(f"source: {{hf: hf}}\nprecision: fp32\nllm: {{{sizes}}}\n")
        built[kv] = build_bundle(load_config(str(folder / f"{kv}.yaml")), folder / kv, new_runner()).bundle.path
    return built


@pytest.mark.parametrize("count", [50, pytest.param(1500, marks=pytest.mark.slow)])
def test_rows_and_caches_change_no_seeded_answer(bundles: dict[str, Path], count: int) -> None:
    prompts = [{"prompt_token_ids": [5 + number % 300, 7, 11 + number % 13]} for number in range(count)]
    params = [
        SamplingParams(seed=number, max_tokens=TOKENS, ignore_eos=True, **FLAT[number % len(FLAT)])
        for number in range(count)
    ]
    answers = {}
    for kv, bundle in bundles.items():
        with LLM(bundle, runtime="reference") as llm:
            together = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
            alone = [
                llm.generate([prompt], one)[0].outputs[0].token_ids for prompt, one in zip(prompts, params, strict=True)
            ]
        answers |= {f"{kv}, together": together, f"{kv}, alone": alone}
    first = answers["linear, alone"]
    assert len({tuple(tokens) for tokens in first}) > 0.9 * count
    for kind, tokens in answers.items():
        assert sum(ours != theirs for ours, theirs in zip(tokens, first, strict=True)) == 0, kind
