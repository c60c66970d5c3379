"""A bundle's head on the simulated runtime: its engine beside the model's, in one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support import tiny_llm
from tests.support.eagle3 import Head, fields_of, save_head
from tests.support.medusa import save_random
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated
    from trtkit.llm.execution.packed import PackedCall

PARAMS = [
    SamplingParams(temperature=t, seed=seed, max_tokens=14, ignore_eos=True)
    for seed, t in enumerate((0.0, 0.8, 30.0, 0.0))
]


KINDS = [("eagle3", "linear", None), ("eagle3", "paged", 10), ("medusa", "linear", 6), ("medusa", "paged", None)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    tiny_llm.save(folder / "model", num_hidden_layers=4)
    torch.manual_seed(2)
    vocabulary = len(tiny_llm.tokenizer())
    kind, kv, tree = request.param
    if kind == "medusa":
        save_random(folder / "head", (48, vocabulary), heads=4)
    else:
        fields = fields_of(vocabulary, hidden_size=48, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
        save_head(folder / "head", Head(fields))
    sizes = f"max_batch_size: 3, max_sequence_length: 64, max_prefill_length: 12, kv: {kv}"
    sizes += "" if tree is None else f", tree_tokens: {tree}"
    text = f"source: {{hf: {folder}/model}}\nprecision: fp32\nllm: {{{sizes}, speculator: {folder}/head}}\n"
    (folder / "m.yaml").write_text(text)
    return build_bundle(load_config(str(folder / "m.yaml")), folder / "bundle", new_runner()).bundle.path


def answers(bundle: Path, runtime: str, **options: Any) -> tuple[list[tuple[int, ...]], tuple[int, int]]:
    """Return the tokens of requests that share batches and prefixes, and how many were guessed and accepted."""
    with LLM(bundle, runtime=runtime, **options) as llm:
        found = [output.outputs[0].token_ids for output in llm.generate(tiny_llm.PROMPTS * 3, PARAMS * 3)]
        return found, (llm.statistics.drafted_tokens, llm.statistics.accepted_tokens)


def test_engines_guess_what_the_reference_networks_do(bundle: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))
    found, guessed = answers(bundle, "tensorrt")
    assert (found, guessed) == answers(bundle, "reference")
    assert guessed[0] > guessed[1] > 0
    assert found == answers(bundle, "tensorrt", speculate=0)[0]


def test_steps_that_check_guesses_run_as_graphs(bundle: Path, gpu: Simulated) -> None:
    """All have one size, so a graph for each number of rows is enough."""
    opened, sizes = open_bundle(bundle), []
    gpu.plans.add(opened)
    assert opened.manifest.config.llm is not None
    most = 1 + (opened.manifest.config.llm.tree_tokens or 3)
    with LLM(bundle, runtime="tensorrt") as llm:
        execution: Any = llm.frontend.execution
        run = execution.forward_packed

        def recorded(packed: PackedCall, draw: Any = None) -> torch.Tensor:
            before = set(execution._graphs)
            logits = run(packed, draw)
            if not packed.places.size:
                sizes.append((packed.decode.ids.shape, set(execution._graphs) == before))
            return logits

        execution.forward_packed = recorded
        llm.generate(tiny_llm.PROMPTS * 3, PARAMS * 3)
        checked = [is_replayed for (_, size), is_replayed in sizes if size == most]
        assert sum(checked) > 2 * (len(checked) - sum(checked)) > 0
        assert {step.size for step in execution._graphs} == {1, most}
