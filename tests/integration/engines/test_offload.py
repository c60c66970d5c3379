"""Stages loaded in turn: RTX's deferred weights, loaded and unloaded by FlexGen's schedule."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

from tests.integration.test_offload import PLACES, PROMPTS, TOKENS, build, save, transformers_tokens, weight_bytes
from tests.simulated_tensorrt.context import SimulatedError
from trtkit import LLM, SamplingParams
from trtkit.backends import load_backend
from trtkit.bundle.bundle import open_bundle
from trtkit.errors import BackendError
from trtkit.llm.offload.decoder import OffloadedDecoder
from trtkit.runtime.loaded_engine import LoadedEngine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llama", tmp_path_factory.mktemp("staged") / "model")


@pytest.fixture(scope="module")
def bundle(model: Path) -> Path:
    return build(model, model.parent / "bundle")


@pytest.mark.parametrize("place", PLACES)
def test_tokens_weights_and_copies(model: Path, bundle: Path, place: str, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in TOKENS]
    resident: list[int] = []
    with LLM(bundle, runtime="tensorrt", offload=place, micro_batch=2) as llm:
        decoder = llm.frontend.execution
        assert isinstance(decoder, OffloadedDecoder)
        engines = [engine for runtime in gpu.runtimes for engine in runtime.engines]
        sizes = weight_bytes(bundle)
        assert [engine.network.weight_bytes for engine in engines] == sizes
        assert not any(engine.weights_loaded for engine in engines)
        for engine in engines:
            loaded = engine.load_weights

            def load(blob: bytes, loaded: object = loaded) -> bool:
                done = loaded(blob)  # type: ignore[operator]
                resident.append(sum(each.network.weight_bytes for each in engines if each.weights_loaded))
                return bool(done)

            engine.load_weights = load  # type: ignore[method-assign]
        answers = [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, params)]
        counts = decoder.counts
        decoder._loading[0].result()  # a thread loads it
        assert [engine.weights_loaded for engine in engines] == [True, False, False]  # ready for the next pass
        assert [engine.loads for engine in engines] == [counts.passes + 1, counts.passes, counts.passes]
    assert answers == transformers_tokens(model)
    assert counts.loads == sum([counts.passes + 1, counts.passes, counts.passes])
    assert max(resident) <= counts.most_resident_bytes < sum(sizes)
    assert bool(counts.fetched_bytes) is bool(counts.stored_bytes) is (place != "device")


def test_caches_in_host_memory_take_less_of_the_device(bundle: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))
    taken = {}
    for place in ("device", "host"):
        gc.collect()
        before = gpu.device.allocated_bytes
        with LLM(bundle, runtime="tensorrt", offload=place, micro_batch=1) as llm:
            taken[place] = gpu.device.allocated_bytes - before
            cached = llm.frontend.execution.cache.form(64).size_bytes  # of a slot
    assert taken["device"] - taken["host"] >= cached  # of one slot of four, and rows of inputs; three are buffers


def test_deferred_weights_are_refused_where_rules_say_so(bundle: Path, gpu: Simulated) -> None:
    """Rules 24a and 24b of the simulated runtime."""
    gpu.plans.add(open_bundle(bundle))
    backend, plan, stream = load_backend("tensorrt_rtx"), open_bundle(bundle).engine_path(), gpu.device.stream()
    engine = LoadedEngine(backend, plan, stream, defers_weights=True)
    (simulated,) = gpu.runtimes[-1].engines
    engine.context()
    engine.unload_weights()  # nothing is loaded
    assert not simulated.unload_weights()
    engine.load_weights()
    engine.load_weights()
    assert (simulated.loads, simulated.load_weights(plan.read_bytes())) == (1, False)
    whole = LoadedEngine(backend, plan, stream)
    (other,) = gpu.runtimes[-1].engines
    assert (other.weights_loaded, other.load_weights(plan.read_bytes()), other.unload_weights()) == (True, False, False)
    whole.unload_weights()
    assert other.weights_loaded
    gpu.device.memory_bytes = gpu.device.allocated_bytes
    engine.unload_weights()
    taken = gpu.device.allocate((8,), torch.uint8)
    with pytest.raises(BackendError, match=r"refused to load weights.*out of memory"):
        engine.load_weights()
    assert taken.numel() == 8


def test_weights_are_not_unloaded_under_work_in_flight(bundle: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))
    with LLM(bundle, runtime="tensorrt", offload="device") as llm:
        decoder = llm.frontend.execution
        assert isinstance(decoder, OffloadedDecoder)
        stage = decoder.stages[0].execution
        stage.load_weights()
        stream = stage.engine.stream  # type: ignore[attr-defined]
        stream.synchronize = lambda: None  # what a mistake would leave out
        hold, stream.hold_current = stream.hold_current, lambda: None
        try:
            with pytest.raises(SimulatedError, match="work is in flight"):
                llm.generate([[3, 4]], SamplingParams(max_tokens=1, temperature=0))
        finally:
            del stream.synchronize
            stream.hold_current = hold


def test_tensorrt_without_deferred_weights_is_refused(
    bundle: Path, gpu: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.plans.add(open_bundle(bundle))
    backend, made = load_backend("tensorrt_rtx"), gpu.runtime

    def without(trt: object, logger: object) -> object:
        runtime = made(trt, logger)
        del runtime.defer_weights_loading
        return runtime

    monkeypatch.setattr(backend.trt, "Runtime", lambda logger: without(backend.trt, logger))
    with pytest.raises(BackendError) as refused:
        LLM(bundle, runtime="tensorrt", offload="device")
    assert str(refused.value) == (
        f"offload: tensorrt_rtx {backend.version} loads an engine's weights with the engine\n"
        "fix: build with TensorRT-RTX (`--target`), or keep all weights on the GPU"
    )
