"""A bundle's assistant on the simulated runtime: its engine reads the caches that the model's writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support import tiny_llm
from tests.support.assistants import assistant, save_assistant, save_model
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


@pytest.fixture(scope="module", params=[pytest.param("linear", marks=pytest.mark.slow), "paged"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assistants")
    save_model(folder / "model")
    save_assistant(folder / "assistant", assistant({"vocab_size": len(tiny_llm.tokenizer())}))
    sizes = f"max_batch_size: 3, max_sequence_length: 64, max_prefill_length: 8, kv: {request.param}"
    text = f"source: {{hf: {folder}/model}}\nprecision: fp32\nllm: {{{sizes}, speculator: {folder}/assistant}}\n"
    (folder / "m.yaml").write_text(text)
    return build_bundle(load_config(str(folder / "m.yaml")), folder / "bundle", new_runner()).bundle.path


def answers(bundle: Path, runtime: str, **options: Any) -> tuple[list[tuple[int, ...]], tuple[int, int]]:
    """Return the tokens of requests that share batches and prefixes, and how many were guessed and accepted."""
    with LLM(bundle, runtime=runtime, **options) as llm:
        outputs = [output.outputs[0].token_ids for output in llm.generate(tiny_llm.PROMPTS, PARAMS)]
        return outputs, (llm.statistics.drafted_tokens, llm.statistics.accepted_tokens)


def test_engines_guess_what_the_reference_networks_do(bundle: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))
    outputs, guessed = answers(bundle, "tensorrt")
    assert (outputs, guessed) == answers(bundle, "reference")
    assert guessed[0] > guessed[1] > 0
    assert outputs == answers(bundle, "tensorrt", speculate=0)[0]
