"""Which launches a step makes, and that the host waits only for the previous step's tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.integration.engines.planted import planted
from tests.selection import slow_unless
from tests.simulated_tensorrt.context import SimulatedError
from tests.simulated_tensorrt.residency import TOKENS, watch
from tests.support import tiny_llm
from tests.support.models import classifier, save
from trtkit.backends import load_backend
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import Bundle, open_bundle
from trtkit.config.load import config_for_source
from trtkit.errors import ExecutionError
from trtkit.jobs.runner import new_runner
from trtkit.llm.engine import EngineOptions, LLMEngine, Request
from trtkit.llm.execution import Call, open_execution
from trtkit.llm.sampling import kernel
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary
from trtkit.runtime import device as devices
from trtkit.runtime.loaded_engine import EngineExecution

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated
    from tests.simulated_tensorrt.residency import Residency

CPU = torch.device("cpu")
KINDS = {
    "separate": "batching: separate",
    "packed": "batching: packed",
    "window": "batching: packed, kv_window: used",
    "paged": "batching: packed, kv: paged, page_tokens: 16",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
    "penalties": {"temperature": 0.8, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {9: 1.0}},
}
MOST_LAUNCHES = 5


@pytest.fixture
def residency(gpu: Simulated, monkeypatch: pytest.MonkeyPatch) -> Residency:
    return watch(gpu.device, monkeypatch.setattr)


@pytest.fixture(scope="module", params=KINDS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(tiny_llm.build(tmp_path_factory.mktemp(request.param), "m", KINDS[request.param]))


def steps_of(engine: LLMEngine, residency: Residency, settings: dict[str, Any]) -> list[tuple[bool, list[str], int]]:
    """Return of each step of some requests whether all slots decoded, what was waited for, and launches."""
    vocabulary = Vocabulary(engine.execution.vocab_size, (tiny_llm.END,), None, None)
    params = SamplingParams(max_tokens=24, ignore_eos=True, seed=3, **settings)
    random = np.random.default_rng(0)
    for number in range(7):
        prompt = random.integers(6, 300, int(random.integers(2, 20))).tolist()
        engine.submit(Request(str(number), prompt, Settings.resolve(params, vocabulary)))
    steps = []
    while engine.has_work:
        before = engine.statistics.prompt_tokens + len(engine.slots.is_running.nonzero()[0]) * 1000
        residency.clear()
        finished = engine.step()
        after = engine.statistics.prompt_tokens + len(engine.slots.is_running.nonzero()[0]) * 1000
        steps.append((before == after and not finished, list(residency.waits), len(residency.launches)))
    return steps


def run(
    bundle: Bundle, gpu: Simulated, residency: Residency, name: str, host_cache_bytes: int = 0
) -> list[tuple[bool, list[str], int]]:
    gpu.plans.add(bundle)
    with residency:
        options = EngineOptions(kernel=True, overlap=True, host_cache_bytes=host_cache_bytes)
        engine = LLMEngine(open_execution(bundle, "tensorrt", 4), options)
        engine.warm_up()
        steps = steps_of(engine, residency, SETTINGS[name])
        assert engine.statistics.synchronous_steps == 0
        engine.execution.close()
    return steps


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "greedy", SETTINGS))
def test_overlapped_steps_wait_for_tokens_only(name: str, bundle: Bundle, gpu: Simulated, residency: Residency) -> None:
    steps = run(bundle, gpu, residency, name)
    assert {wait for _, waits, _ in steps for wait in waits} == {TOKENS}
    decoding = [launches for decodes, _, launches in steps if decodes]
    assert len(decoding) > 20
    assert 0 < max(decoding) <= MOST_LAUNCHES


def test_copies_to_host_memory_wait_for_nothing(bundle: Bundle, gpu: Simulated, residency: Residency) -> None:
    steps = run(bundle, gpu, residency, "greedy", host_cache_bytes=1 << 20)
    assert {wait for _, waits, _ in steps for wait in waits} == {TOKENS}
    assert max(launches for _, _, launches in steps) > 40  # prompts that take other slots have their blocks copied


MISTAKES = {
    "pageable inputs": (
        "trtkit.runtime.device",
        "return tensor if is_host(device) else tensor.pin_memory()",
        "return tensor",
    ),
    "numbers that are read": (
        "trtkit.llm.sampling.kernel.steps",
        "self._draw.numbers[rows].copy_(",
        "self._draw.numbers[rows].sum().item(); self._draw.numbers[rows].copy_(",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_wait_is_seen(
    name: str, gpu: Simulated, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bundle = open_bundle(tiny_llm.build(tmp_path_factory.mktemp("waits"), "m", KINDS["packed"]))
    with planted(*MISTAKES[name]):
        steps = run(bundle, gpu, watch(gpu.device, monkeypatch.setattr), "drawn")
    assert {wait for _, waits, _ in steps for wait in waits} > {TOKENS}


def test_copies_of_pageable_memory_wait_and_pinned_ones_do_not(gpu: Simulated, residency: Residency) -> None:
    stream = gpu.device.stream()
    array = stream.empty((4,), torch.float32)
    with residency:
        array.copy_(torch.ones(4), non_blocking=True)
        assert residency.waits.pop() == "a copy from pageable memory"
        array.copy_(devices.staged(torch.ones(4), CPU), non_blocking=True)
        devices.to_device(np.ones(4), CPU)
        assert not residency.waits
        torch.empty(4).copy_(array)
        assert residency.waits.pop() == "a copy to pageable memory"
        torch.tensor([1.0], device=CPU)
        assert residency.waits.pop() == "`torch.tensor` copies pageable memory"
        torch.ones(4).to(CPU, non_blocking=True)
        assert residency.waits.pop() == "`.to(device)` copies pageable memory"


@pytest.mark.parametrize("what", ["index", "item", "nonzero", "mask"])
def test_what_needs_values_on_the_host_waits(what: str, gpu: Simulated, residency: Residency) -> None:
    array = gpu.device.stream().empty((4,), torch.float32)
    with residency:
        array.fill_(1)
        match what:
            case "index":
                array[torch.tensor([1, 2])]
            case "item":
                array.sum().item()
            case "nonzero":
                array.nonzero()
            case _:
                array[array > 0]
        assert len(residency.waits) == 1
        gpu.device.stream().synchronize()
        assert residency.waits[1:] == ["a stream"]


def test_memory_of_host_and_device_does_not_mix(gpu: Simulated, residency: Residency) -> None:
    array = gpu.device.stream().empty((4,), torch.float32)
    with residency:
        array.fill_(1)
        with pytest.raises(SimulatedError, match="all tensors have to be on the same device"):
            array + torch.ones(4)
        with pytest.raises(SimulatedError, match="cannot be read as a NumPy array"):
            (array + 1).numpy()


def test_a_kernel_takes_no_memory_of_the_hosts(gpu: Simulated, residency: Residency) -> None:
    """So logits have to be on the device that draws."""
    numbers = gpu.device.stream().empty((2, 9), torch.float64)
    with residency, pytest.raises(SimulatedError, match=r"cannot be accessed from Triton \(cpu tensor\?\)"):
        kernel.sample(torch.zeros(2, 8), numbers)


def test_a_stream_waits_for_what_it_reads_to_be_written(gpu: Simulated, residency: Residency) -> None:
    stream = gpu.device.stream()
    with residency:
        target = stream.empty((4,), torch.float32)
        source = devices.to_device(np.ones(4, np.float32), CPU)
        with pytest.raises(ExecutionError, match="has yet to write what it reads"):
            stream.run(partial(target.copy_, source))
        stream.wait_for_current()
        stream.run(partial(target.copy_, source))
        stream.hold_current()
        assert not residency.waits


def test_nothing_is_waited_for_in_a_capture(gpu: Simulated, residency: Residency) -> None:
    stream = gpu.device.stream()
    array = stream.empty((4,), torch.float32)
    with residency, pytest.raises(ExecutionError, match="a copy from pageable memory while a graph is captured"):
        stream.capture(lambda: array.copy_(torch.ones(4)))


def test_a_saved_sequence_is_waited_for_once(bundle: Bundle, gpu: Simulated, residency: Residency) -> None:
    gpu.plans.add(bundle)
    with residency:
        execution = open_execution(bundle, "tensorrt", 2)
        prompt = np.arange(10, 22)[None]
        execution.forward(Call(0, prompt, np.zeros(1, np.int64), np.array([12])))
        residency.clear()
        saved = execution.cache.save(0, 12)
        assert residency.waits == ["a stream"]
        residency.clear()
        execution.cache.load(1, saved)
        assert not residency.waits
        again = execution.cache.save(1, 12)
        assert torch.equal(saved.data, again.data)
        assert not saved.data.view(torch.float32).isnan().any()
        execution.close()


def test_inputs_of_vision_models_are_not_waited_for(gpu: Simulated, residency: Residency, tmp_path: Path) -> None:
    """And the first run of a shape launches the engine once."""
    config = config_for_source("onnx", save(classifier(), tmp_path / "model.onnx"))
    vision = build_bundle(config, tmp_path / "bundle", new_runner(), use_cache=False).bundle
    gpu.plans.add(vision)
    with residency:
        backend, plan = load_backend("tensorrt_rtx"), vision.engine_path()
        execution = EngineExecution(backend, plan, gpu.device.stream(), has_cuda_graphs=True)
        (name,) = execution.input_names
        shape = tuple(max(size, 1) for size in execution._engine.inputs[name].shape)
        image = np.random.default_rng(0).random(shape).astype(np.float32)
        gpu.device.failing_captures = 1
        for launches in (1, 2):
            outputs = execution.run({name: image})
            execution._stream.hold_current()
            assert residency.launches.count("engine") == launches
            assert outputs
        assert set(residency.waits) <= {"kernels are compiled"}
