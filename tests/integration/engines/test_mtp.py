"""A bundle's MTP module on the simulated runtime: both engines run on one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support import tiny_llm
from tests.support.mtp import new_pair, save, train
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated

PARAMS = [
    SamplingParams(temperature=t, seed=seed, max_tokens=14, ignore_eos=True)
    for seed, t in enumerate((0.0, 0.8, 30.0, 0.0))
]
KINDS = [
    ("glm4_moe", "paged", None),
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in (("deepseek_v3", "linear", 6), ("qwen3_next", "linear", None))
    ),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mtp")
    family, kv, tree = request.param
    torch.manual_seed(0)
    pair, tokenizer = new_pair(family, vocab_size=len(tiny_llm.tokenizer())), tiny_llm.tokenizer()
    train(pair, torch.tensor(tokenizer(tiny_llm.TEXT).input_ids), 10)
    save(folder / "model", pair)
    tokenizer.save_pretrained(folder / "model")
    sizes = f"max_batch_size: 3, max_sequence_length: 64, max_prefill_length: 8, kv: {kv}"
    sizes += "" if tree is None else f", tree_tokens: {tree}"
    (folder / "m.yaml").write_text(f"source: {{hf: model}}\nprecision: fp32\nllm: {{{sizes}, speculator: built-in}}\n")
    return build_bundle(load_config(str(folder / "m.yaml")), folder / "bundle", new_runner()).bundle.path


def answers(bundle: Path, runtime: str, **options: Any) -> tuple[list[tuple[int, ...]], tuple[int, int]]:
    """Return the tokens of requests that share batches and prefixes, and how many were guessed and accepted."""
    with LLM(bundle, runtime=runtime, **options) as llm:
        outputs = [output.outputs[0].token_ids for output in llm.generate(tiny_llm.PROMPTS * 2, PARAMS * 2)]
        return outputs, (llm.statistics.drafted_tokens, llm.statistics.accepted_tokens)


def test_engines_guess_what_the_reference_networks_do(bundle: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))
    outputs, guessed = answers(bundle, "tensorrt")
    assert (outputs, guessed) == answers(bundle, "reference")
    assert guessed[0] > guessed[1] > 0
    assert outputs == answers(bundle, "tensorrt", speculate=0)[0]
