"""Engines that stream weights from the host: accepted budgets, and what weight streaming excludes."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.simulated_tensorrt.runtime import SCRATCH_BYTES
from tests.support import tiny_llm
from tests.support.models import classifier, save
from trtkit import LLM
from trtkit.backends import load_backend
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import config_for_source, load_config
from trtkit.errors import BackendError, RequestError
from trtkit.jobs.runner import new_runner
from trtkit.models.parallel import Grid
from trtkit.runtime.loaded_engine import LoadedEngine
from trtkit.runtime.model import open_model
from trtkit.runtime.weight_budget import weight_budget_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from tests.simulated_tensorrt import Simulated

GIB = 2**30


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose weights may be streamed: TensorRT-RTX builds it with its flag."""
    folder = tmp_path_factory.mktemp("streamed")
    tiny_llm.save(folder / "hf")
    sizes = "{max_batch_size: 4, max_sequence_length: 96, max_prefill_length: 16, logits: all}"
    (folder / "m.yaml").write_text(f"source: {{hf: {folder}/hf}}\nllm: {sizes}\nbuild: {{weight_streaming: true}}\n")
    return build_bundle(load_config(str(folder / "m.yaml")), folder / "bundle", new_runner()).bundle.path


@pytest.fixture(scope="module")
def picture_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streamed-model")
    config = config_for_source("onnx", save(classifier(), folder / "model.onnx"), ["build.weight_streaming=true"])
    return build_bundle(config, folder / "bundle", new_runner()).bundle.path


def weight_bytes(bundle: Path) -> int:
    return sum(open_bundle(bundle).manifest.totals.weight_bytes.values())


def answers(bundle: Path, **options: Any) -> list[tuple[int, ...]]:
    with LLM(bundle, **options) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(tiny_llm.PROMPTS * 2, tiny_llm.GREEDY)]


@pytest.mark.parametrize("share", [0, 0.4, 1])
def test_tokens_and_memory_at_a_budget(share: float, bundle: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))
    with LLM(bundle, runtime="tensorrt") as llm:
        llm.generate("do not", tiny_llm.GREEDY)
        whole = gpu.device.allocated_bytes
    del llm
    gc.collect()
    budget = int(share * weight_bytes(bundle))
    with LLM(bundle, runtime="tensorrt", weight_budget_gib=budget / GIB) as llm:
        llm.generate("do not", tiny_llm.GREEDY)
        (engine,) = gpu.runtimes[-1].engines
        assert engine.weight_streaming_budget_v2 == budget
        is_streaming = share < 1
        scratch = SCRATCH_BYTES * is_streaming  # shared by the contexts
        assert whole - gpu.device.allocated_bytes == weight_bytes(bundle) - budget - scratch
        assert llm.frontend.execution.is_asynchronous is not is_streaming
        assert bool(llm.frontend.execution._graphs) is not is_streaming
    assert answers(bundle, runtime="tensorrt", weight_budget_gib=budget / GIB) == answers(bundle, runtime="reference")


def used(bundle: Path, gpu: Simulated, **options: Any) -> tuple[int, int, list[tuple[int, ...]]]:
    """Return what an automatic budget is, how much of the device is in use then, and the tokens of answers."""
    gc.collect()
    gpu.runtimes.clear()
    with LLM(bundle, runtime="tensorrt", weight_budget_gib="auto", **options) as llm:
        budget = gpu.runtimes[0].engines[0].weight_streaming_budget_v2
        outputs = llm.generate(tiny_llm.PROMPTS * 2, tiny_llm.GREEDY)
        in_use, is_streaming = gpu.device.allocated_bytes, budget < weight_bytes(bundle)
        assert llm.frontend.execution.is_asynchronous is not is_streaming
        assert bool(llm.frontend.execution._graphs) is not is_streaming
    return budget, in_use, [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("has_draft", [False, True], ids=["alone", "with a draft"])
def test_an_automatic_budget_is_what_everything_else_leaves(has_draft: bool, bundle: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))
    options = {"host_cache_gib": 0, "draft": bundle if has_draft else None}
    weights, expected = weight_bytes(bundle), answers(bundle, runtime="reference")
    budget, whole, tokens = used(bundle, gpu, **options)
    assert (budget, tokens) == (weights, expected)
    share = 0.8 if has_draft else 0.4
    gpu.device.memory_bytes = int((whole - (1 - share) * weights) / 0.9)  # a tenth stays free
    budget, in_use, tokens = used(bundle, gpu, **options)
    scratch = SCRATCH_BYTES
    assert budget == pytest.approx(share * weights - scratch, abs=16)
    assert in_use == pytest.approx(0.9 * gpu.device.memory_bytes, abs=16)
    assert tokens == expected
    gpu.device.memory_bytes = whole - weights + 2 * SCRATCH_BYTES  # just what runs with all weights streamed
    assert used(bundle, gpu, **options)[::2] == (0, expected)


def test_a_budget_comes_before_the_contexts_and_a_graph_holds_no_stream(bundle: Path, gpu: Simulated) -> None:
    """Rules 21 to 24 of the simulated runtime."""
    gpu.plans.add(open_bundle(bundle))
    stream, plan = gpu.device.stream(), open_bundle(bundle).engine_path()
    engine = LoadedEngine(load_backend("tensorrt_rtx"), plan, stream)
    assert (engine.streamable_bytes, engine.is_streaming) == (weight_bytes(bundle), False)
    engine.stream_weights(0)
    assert engine.is_streaming
    context = engine.context()
    with pytest.raises(BackendError, match=r"refused a weight budget of 5 bytes: .* active execution contexts"):
        engine.stream_weights(5)
    (simulated,) = gpu.runtimes[-1].engines
    assert not context.is_capturable()
    assert not simulated.contexts[0].is_stream_capturable(stream.handle)
    engine.close()
    with LLM(bundle, runtime="tensorrt", weight_budget_gib=0) as llm:
        llm.generate("do not", tiny_llm.GREEDY)
        decoder = llm.frontend.execution
        with pytest.raises(BackendError, match="cannot be captured: it streams its weights"):
            decoder._stream.capture(lambda: decoder.engine.context(1).enqueue())  # type: ignore[attr-defined]


def test_budgets_that_are_refused(
    bundle: Path, gpu: Simulated, llm_bundle: Path, tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    gpu.plans.add(open_bundle(bundle))
    gpu.plans.add(open_bundle(llm_bundle))
    with pytest.raises(RequestError) as refused:
        LLM(bundle, runtime="tensorrt", weight_budget_gib=1)
    gib = f"{weight_bytes(bundle) / GIB:.4g}"
    assert str(refused.value) == (
        f"weight_budget_gib: 1 GiB are more than all weights that can be streamed, {gib} GiB\n"
        "fix: give less, or leave it out to keep all weights on the GPU"
    )
    for runtime, budget in (("tensorrt", 0.1), ("reference", 0.1), ("tensorrt", "auto")):
        ran = trtkit("generate", llm_bundle, "a", "--runtime", runtime, "--weight-budget", budget, "-q")
        assert (ran.code, ran.err) == (
            2,
            "error: --weight-budget: the engine was built with all weights on the GPU\n"
            "fix: build with `--set build.weight_streaming=true`, or leave it out\n",
        )
    words = ["deploy", llm_bundle, "--repository", tmp_path / "models", "--set", "llm.weight_budget_gib=0.1"]
    assert "weight_budget_gib: the engine was built with all weights on the GPU" in trtkit(*words).err
    assert not (tmp_path / "models").exists()
    with pytest.raises(RequestError, match="weight_budget_gib: `most` is not a budget"):
        LLM(bundle, weight_budget_gib="most")
    with pytest.raises(RequestError, match="-1 GiB"):
        LLM(bundle, weight_budget_gib=-1)
    ran = trtkit("bench", bundle, "--weight-budget", 0, "--cuda-graphs")
    assert "--cuda-graphs cannot be combined with --weight-budget" in ran.err


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("images", object(), "`auto` is for decoders alone"),
        ("encoder", object(), "`auto` is for decoders alone"),
        ("grid", Grid(tensor=2), "`auto` is for one GPU; the bundle has 2 ranks"),
    ],
)
def test_automatic_budgets_that_are_refused(
    name: str, value: object, reason: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_bundle(bundle)
    monkeypatch.setattr(type(opened.manifest), name, property(lambda _: value))
    with pytest.raises(RequestError, match=f"weight_budget_gib: {reason}"):
        weight_budget_bytes(opened, "auto")


def test_a_deployment_may_have_an_automatic_budget(bundle: Path, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    words = ("deploy", bundle, "--repository", tmp_path / "models", "--name", "chat")
    assert trtkit(*words, "--set", "llm.weight_budget_gib=auto").code == 0
    assert '"weight_budget_gib": "auto"' in "".join(
        path.read_text() for path in (tmp_path / "models/chat").rglob("*.json")
    )
    ran = trtkit(*words, "--set", "llm.weight_budget_gib=-1")
    assert (ran.code, "weight_budget_gib" in ran.err) == (2, True)


def test_a_model_of_arrays(picture_model: Path, gpu: Simulated, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    gpu.plans.add(open_bundle(picture_model))
    name = open_bundle(picture_model).manifest.inputs[0].name
    inputs = {name: np.random.default_rng(0).random((1, 3, 16, 16), np.float32)}
    saved = tmp_path / "inputs.npz"
    np.savez(saved, **inputs)
    assert trtkit("run", picture_model, saved, "--weight-budget", 0, "-q").code == 0
    ran = trtkit("run", picture_model, saved, "--weight-budget", 1, "-q")
    assert ran.code == 2
    assert ran.err.startswith("error: --weight-budget: 1 GiB are more than all weights that can be streamed")
    ran = trtkit("run", picture_model, saved, "--weight-budget", "auto", "-q")
    assert ran.err.startswith("error: --weight-budget: `auto` is for decoders alone")
    expected = open_model(picture_model, "reference").run(inputs)
    half = weight_bytes(picture_model) // 2
    for graphs in (False, True):
        model = open_model(picture_model, "tensorrt", has_cuda_graphs=graphs, weight_budget_gib=half / GIB)
        (engine,) = gpu.runtimes[-1].engines
        assert engine.weight_streaming_budget_v2 == half
        for _ in range(3):
            for output, values in model.run(inputs).items():
                np.testing.assert_allclose(values, expected[output], rtol=1e-5, atol=1e-6)
    with pytest.raises(RequestError, match="more than all weights that can be streamed"):
        open_model(picture_model, "tensorrt", weight_budget_gib=1)
