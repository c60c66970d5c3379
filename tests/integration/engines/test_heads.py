"""A bundle's draft head on the simulated runtime: both engines run on one stream."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.simulated_tensorrt.residency import TOKENS, watch
from tests.support import tiny_llm
from tests.support.eagle3 import Head, fields_of, save_head
from tests.support.medusa import save_random
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner
from trtkit.llm.engine import LLMEngine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated
    from tests.simulated_tensorrt.residency import Residency
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


def without_guesses(bundle: Path, params: list[SamplingParams], **options: Any) -> list[tuple[int, ...]]:
    """Return the answers of the reference executor."""
    with LLM(bundle, runtime="reference", **options) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(tiny_llm.PROMPTS[:3], params)]


Steps = tuple[list[list[str]], list[tuple[int, ...]]]


def waits_of_steps(bundle: Path, residency: Residency, params: list[SamplingParams], **options: Any) -> Steps:
    """Return what each step that read no prompt waited for, but for kernels, and the answers."""
    waits, step = [], LLMEngine.step

    def recorded(engine: LLMEngine) -> list[Any]:
        read = engine.statistics.prompt_tokens
        residency.clear()
        finished = step(engine)
        if engine.statistics.prompt_tokens == read:
            waits.append([wait for wait in residency.waits if wait != "kernels are compiled"])
        return finished

    with residency, pytest.MonkeyPatch.context() as patch, LLM(bundle, runtime="tensorrt", **options) as llm:
        patch.setattr(LLMEngine, "step", recorded)
        outputs = llm.generate(tiny_llm.PROMPTS[:3], params)
        assert llm.statistics.accepted_tokens > 2
        return waits, [output.outputs[0].token_ids for output in outputs]


def test_a_step_waits_once_for_its_guesses_and_once_for_its_tokens(
    bundle: Path, gpu: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.plans.add(open_bundle(bundle))
    expected = without_guesses(bundle, PARAMS[:3], speculate=0)
    waits, answered = waits_of_steps(bundle, watch(gpu.device, monkeypatch.setattr), PARAMS[:3])
    assert max(waits, key=len) == [TOKENS, TOKENS]
    assert answered == expected


@pytest.mark.parametrize("batching", ["packed", "separate"])
def test_a_step_waits_once_for_the_guesses_of_a_smaller_model(
    batching: str, gpu: Simulated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Answers are longer than the block of numbers that a slot draws with."""
    bundle = tiny_llm.build(tmp_path, "m", f"batching: {batching}")
    gpu.plans.add(open_bundle(bundle))
    params = [replace(each, max_tokens=70) for each in PARAMS[:3]]
    expected = without_guesses(bundle, params)
    residency = watch(gpu.device, monkeypatch.setattr)
    waits, answered = waits_of_steps(bundle, residency, params, draft=bundle, draft_tokens=3)
    assert max(waits, key=len) == [TOKENS, TOKENS]
    assert answered == expected
