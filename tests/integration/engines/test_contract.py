"""The simulated runtime's rules for trtkit: one test per item of tests/simulated_tensorrt/README.md."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.simulated_tensorrt.context import SimulatedError
from tests.simulated_tensorrt.runtime import ACTIVATION_BYTES
from tests.simulated_tensorrt.runtime_config import RuntimeCache
from tests.support.models import classifier, save
from trtkit.backends import load_backend
from trtkit.builder.build import build_bundle
from trtkit.config.load import config_for_source
from trtkit.errors import BackendError, ExecutionError
from trtkit.jobs.runner import new_runner
from trtkit.network.trt_errors import error_recorder
from trtkit.reference import ThreadGroup
from trtkit.runtime.loaded_engine import LoadedEngine
from trtkit.runtime.runtime_cache import cache_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated
    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.host_device import HostStream
    from trtkit.runtime.loaded_engine import ExecutionContext

BACKEND = load_backend("tensorrt_rtx")
SHAPE, OUTPUT = (2, 3, 16, 16), (2, 5)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A classifier of batches 1 to 4, and of 5 to 8 in a second profile."""
    folder = tmp_path_factory.mktemp("contract")
    ranges = "profiles=[{batch: {min: 1, opt: 2, max: 4}}, {batch: {min: 5, opt: 6, max: 8}}]"
    config = config_for_source("onnx", save(classifier(), folder / "model.onnx"), [ranges])
    return build_bundle(config, folder / "bundle", new_runner(), use_cache=False).bundle


@pytest.fixture
def stream(gpu: Simulated) -> HostStream:
    return gpu.device.stream()


@pytest.fixture
def engine(gpu: Simulated, bundle: Bundle, stream: HostStream) -> LoadedEngine:
    gpu.plans.add(bundle)
    return LoadedEngine(BACKEND, bundle.engine_path(), stream)


def user_managed_context(engine: Any, strategy_name: str = "EAGER") -> Any:
    config = engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(BACKEND.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    strategy = getattr(BACKEND.trt.DynamicShapesKernelSpecializationStrategy, strategy_name)
    config.dynamic_shapes_kernel_specialization_strategy = strategy
    return engine.create_execution_context(config)


def ready(engine: LoadedEngine, stream: HostStream, profile: int = 0) -> tuple[ExecutionContext, Any, Any]:
    """Return a context with everything set, its input and its output."""
    context, shape = engine.context(profile, is_captured=True), (SHAPE[0] + 4 * profile, *SHAPE[1:])
    (x,), (y,) = engine.inputs, engine.outputs
    image, scores = stream.empty(shape, torch.float32), stream.empty((shape[0], OUTPUT[1]), torch.float32)
    stream.run(partial(image.copy_, torch.randn(shape)))
    context.set_input(x, shape, image)
    context.set_address(y, scores)
    return context, image, scores


def test_a_launch_computes_when_its_stream_is_waited_for(engine: LoadedEngine, stream: HostStream) -> None:
    context, _, scores = ready(engine, stream)
    context.enqueue()
    assert scores.isnan().all()
    stream.synchronize()
    assert not scores.isnan().any()


def test_a_plan_of_nobody_is_not_loaded(gpu: Simulated, tmp_path: Path) -> None:
    (tmp_path / "x.plan").write_bytes(b"plan")
    with pytest.raises(BackendError, match="cannot load the plan on this machine: Serialization assertion failed"):
        LoadedEngine(BACKEND, tmp_path / "x.plan", gpu.device.stream())


@pytest.mark.parametrize("shape", [(9, 3, 16, 16), (5, 3, 16, 16), (2, 3, 16), (2, 4, 16, 16)])
def test_a_shape_outside_the_profile_is_refused(
    shape: tuple[int, ...], engine: LoadedEngine, stream: HostStream
) -> None:
    with pytest.raises(BackendError, match=r"TensorRT refused input `.*setInputShape"):
        engine.context(0).set_input(next(iter(engine.inputs)), shape, stream.empty((10_000,), torch.float32))


def test_a_misaligned_address_is_refused(engine: LoadedEngine, stream: HostStream) -> None:
    memory = stream.empty((10_000,), torch.float32)[1:]
    with pytest.raises(BackendError, match="not aligned to 256 bytes"):
        engine.context(0).set_input(next(iter(engine.inputs)), SHAPE, memory)


def test_a_missing_shape_and_a_missing_address_are_refused(engine: LoadedEngine, stream: HostStream) -> None:
    context, (x,), (y,) = engine.context(0), engine.inputs, engine.outputs
    context.set_address(x, stream.empty(SHAPE, torch.float32))
    context.set_address(y, stream.empty(OUTPUT, torch.float32))
    with pytest.raises(BackendError, match=r"the shape of input `.*` is not set"):
        context.enqueue()
    other = engine.context(1)
    other.set_input(x, (5, 3, 16, 16), stream.empty((5, 3, 16, 16), torch.float32))
    with pytest.raises(BackendError, match=r"the address of `.*` is not set"):
        other.enqueue()


def test_an_output_buffer_that_is_too_small_is_a_fault(engine: LoadedEngine, stream: HostStream) -> None:
    context, _, _ = ready(engine, stream)
    small = stream.empty((1, OUTPUT[1]), torch.float32)
    context.set_address(next(iter(engine.outputs)), small)
    context.enqueue()
    with pytest.raises(SimulatedError, match="needs 40 bytes"):
        stream.synchronize()


def test_memory_that_was_given_back_is_a_fault(engine: LoadedEngine, stream: HostStream) -> None:
    context, _, scores = ready(engine, stream)
    context.enqueue()
    del scores
    with pytest.raises(SimulatedError, match="at an address where there are fewer, or none"):
        stream.synchronize()


def test_work_on_another_stream_needs_a_wait(
    gpu: Simulated, engine: LoadedEngine, bundle: Bundle, stream: HostStream
) -> None:
    """One engine writes what another one reads."""
    context, image, _scores = ready(engine, stream)
    context.enqueue()
    other_stream = gpu.device.stream()
    other = LoadedEngine(BACKEND, bundle.engine_path(), other_stream)
    later, _image, scores = ready(other, other_stream)
    later.set_address(next(iter(other.outputs)), image)
    with pytest.raises(BackendError, match=r"is in use on stream 1, which stream 2 has not waited for"):
        later.enqueue()
    stream.synchronize()
    later.set_address(next(iter(other.outputs)), scores)
    later.enqueue()


def test_two_contexts_do_not_run_on_one_profile_at_once(
    gpu: Simulated, engine: LoadedEngine, stream: HostStream
) -> None:
    context, _, _ = ready(engine, stream)
    context.enqueue()
    simulated = gpu.runtimes[-1].engines[-1]
    second, other_stream = user_managed_context(simulated), gpu.device.stream()
    own = other_stream.empty((simulated.device_memory_size_v2,), torch.uint8)
    second.set_device_memory(own.data_ptr(), own.nbytes)
    second.error_recorder = recorder = error_recorder(BACKEND)
    (x,), (y,) = engine.inputs, engine.outputs
    image, scores = other_stream.empty(SHAPE, torch.float32), other_stream.empty(OUTPUT, torch.float32)
    assert second.set_input_shape(x, SHAPE)
    assert second.set_tensor_address(x, image.data_ptr())
    assert second.set_tensor_address(y, scores.data_ptr())
    assert not second.execute_async_v3(other_stream.handle)
    assert recorder.texts == ["enqueueV3: profile 0 is in use by another context on stream 1"]


@pytest.mark.parametrize("what", ["allocates", "waits"])
def test_a_capture_neither_allocates_nor_waits(what: str, stream: HostStream) -> None:
    work = partial(stream.empty, (4,), torch.float32) if what == "allocates" else stream.synchronize
    with pytest.raises(ExecutionError, match="while a graph is captured"):
        stream.capture(work)
    stream.synchronize()  # the capture has ended


def test_a_graph_replays_addresses_and_shapes(engine: LoadedEngine, stream: HostStream) -> None:
    context, image, scores = ready(engine, stream)
    context.enqueue()
    stream.synchronize()
    first = scores.clone()
    graph = stream.capture(context.enqueue)
    context.set_input(next(iter(engine.inputs)), (1, *SHAPE[1:]), stream.empty((1, *SHAPE[1:]), torch.float32))
    stream.run(partial(image.copy_, image.flip(0)))
    graph.replay()
    stream.synchronize()
    assert torch.equal(scores, first.flip(0))


def test_a_graph_does_not_outlive_its_memory(engine: LoadedEngine, stream: HostStream) -> None:
    context, _, scores = ready(engine, stream)
    graph = stream.capture(context.enqueue)
    del scores
    graph.replay()
    with pytest.raises(SimulatedError, match="at an address where there are fewer, or none"):
        stream.synchronize()


def test_a_communicator_is_set_once(gpu: Simulated, engine: LoadedEngine) -> None:
    engine.context(0)
    context = gpu.runtimes[-1].engines[-1].contexts[-1]
    context.error_recorder = recorder = error_recorder(BACKEND)
    communicator = gpu.device.connect(ThreadGroup(1).member(0))
    assert not context.set_communicator(communicator.handle)
    assert recorder.texts == ["setCommunicator: The engine is not a multi-device engine."]
    recorder.clear()
    context.engine.has_collectives = True
    assert not context.set_communicator(object())
    assert context.set_communicator(communicator.handle)
    assert not context.set_communicator(communicator.handle)
    refusals = ["not a capsule of a communicator", "existing communicator must be null"]
    assert recorder.texts == [f"setCommunicator: {each}" for each in refusals]


def test_kernels_are_compiled_once_for_a_gpu(
    gpu: Simulated, bundle: Bundle, stream: HostStream, tmp_path: Path
) -> None:
    gpu.plans.add(bundle)
    kept, compiled = tmp_path / "kernels", []
    for content in (None, None, b"broken", b'["another GPU", []]'):
        if content is not None:
            kept.write_bytes(content)
        loaded = LoadedEngine(BACKEND, bundle.engine_path(), stream, kept)
        context, *memory = ready(loaded, stream)
        context.enqueue()
        stream.synchronize()
        assert memory
        loaded.close()
        compiled.append(len(gpu.runtimes[-1].engines[-1].compiled))
    assert compiled == [1, 0, 1, 1]


def test_contexts_of_an_engine_share_scratch_memory_of_the_largest_profile(
    gpu: Simulated, engine: LoadedEngine, stream: HostStream
) -> None:
    held = gpu.device.allocated_bytes
    assert engine.pending_context_bytes == ACTIVATION_BYTES
    launches = [ready(engine, stream, profile) for profile in (1, 0)]
    assert ACTIVATION_BYTES < gpu.device.allocated_bytes - held < 2 * ACTIVATION_BYTES
    assert engine.pending_context_bytes == 0
    for context, _, _ in launches:
        context.enqueue()
    stream.synchronize()
    assert not any(scores.isnan().any() for _, _, scores in launches)


def test_an_engine_that_requires_user_memory_gives_no_other_context(gpu: Simulated, engine: LoadedEngine) -> None:
    simulated = gpu.runtimes[-1].engines[-1]
    assert simulated.create_execution_context() is None
    assert "requires ExecutionContextAllocationStrategy::kUSER_MANAGED" in engine.errors.texts[-1]
    context = user_managed_context(simulated)
    context.set_device_memory(1, ACTIVATION_BYTES)
    assert engine.errors.texts[-1] == "setDeviceMemoryV2: the memory is not aligned to 256 bytes"


@pytest.mark.parametrize("fault", ["none", "small", "given back", "in use"])
def test_device_memory_is_large_enough_and_not_in_use(
    fault: str, gpu: Simulated, engine: LoadedEngine, stream: HostStream, bundle: Bundle
) -> None:
    context, _image, _scores = ready(engine, stream)
    raw, scratch = context._context, engine.scratch()
    if fault == "in use":
        other = LoadedEngine(BACKEND, bundle.engine_path(), gpu.device.stream())
        second, *_memory = ready(other, other.stream)
        second._context.set_device_memory(scratch.data_ptr(), scratch.nbytes)
        second.enqueue()
        with pytest.raises(BackendError, match="`device memory` is in use on stream 2"):
            context.enqueue()
    elif fault == "given back":
        context.enqueue()
        engine._scratch = scratch = None
        with pytest.raises(SimulatedError, match=f"`device memory` needs {ACTIVATION_BYTES} bytes"):
            stream.synchronize()
    else:
        raw.set_device_memory(scratch.data_ptr(), 256 if fault == "small" else 0)
        with pytest.raises(BackendError, match=f"needs {ACTIVATION_BYTES} bytes of device memory"):
            context.enqueue()


def test_a_full_device_gives_no_context_and_says_so(gpu: Simulated, engine: LoadedEngine) -> None:
    gpu.device.memory_bytes = gpu.device.allocated_bytes
    with pytest.raises(BackendError, match=r"refused an execution context: Cuda failure: 2 \(out of memory\)"):
        engine.context(0)


def test_a_refusal_names_its_own_reason_only(
    engine: LoadedEngine, stream: HostStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _, _ = ready(engine, stream)
    engine.errors.report_error(None, "an error of before")
    monkeypatch.setattr(type(context._context), "execute_async_v3", lambda *_: False)
    with pytest.raises(BackendError, match=r"TensorRT refused the engine$"):
        context.enqueue()


@pytest.mark.parametrize("gpus", [(), ("a GPU",)])
def test_cuda_errors_of_a_build_are_noise_only_without_a_gpu(
    gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtkit.network.trt_errors.list_gpus", lambda: gpus)
    recorder = error_recorder(BACKEND)
    recorder.report_error(None, "Cuda failure: 2 (out of memory)")
    assert len(recorder.texts) == len(gpus)


def test_memory_that_the_caller_drops_is_not_kept_by_a_streams_work(stream: HostStream) -> None:
    array, places = stream.empty((4,), torch.float32), torch.tensor([1])
    stream.run(partial(array.index_fill_, 0, places, 1.0))
    stream.synchronize()
    assert array[1] == 1
    stream.run(partial(array.index_fill_, 0, places, 2.0))
    del places
    with pytest.raises(ExecutionError, match="the caller's memory was given back before the stream has read it"):
        stream.synchronize()


def test_calls_of_a_context_are_not_captured_but_the_enqueue(engine: LoadedEngine, stream: HostStream) -> None:
    context, image, _scores = ready(engine, stream)
    context.enqueue()
    with pytest.raises(BackendError, match="while a graph is captured: it may hold the enqueue alone"):
        stream.capture(lambda: context.set_input(next(iter(engine.inputs)), SHAPE, image))
    with pytest.raises(BackendError, match=r"setTensorAddress: .* while a graph is captured"):
        stream.capture(lambda: context.set_address(next(iter(engine.inputs)), image))
    assert stream.capture(context.enqueue) is not None


def test_a_capture_may_fail(gpu: Simulated, engine: LoadedEngine, stream: HostStream) -> None:
    context, _image, _scores = ready(engine, stream)
    gpu.device.failing_captures = 1
    assert stream.capture(context.enqueue) is None
    assert stream.capture(context.enqueue) is not None


def test_kernels_compile_while_one_waits_or_in_the_background(gpu: Simulated, engine: LoadedEngine) -> None:
    simulated = gpu.runtimes[-1].engines[-1]
    scratch, (x,), (y,) = engine.scratch(), engine.inputs, engine.outputs
    stream = engine.stream
    image, scores = stream.empty(SHAPE, torch.float32), stream.empty(OUTPUT, torch.float32)
    for strategy, counts in {"LAZY": (0, 1), "EAGER": (1, 1)}.items():
        context = user_managed_context(simulated, strategy)
        context.error_recorder = recorder = error_recorder(BACKEND)
        context.set_device_memory(scratch.data_ptr(), scratch.nbytes)
        context.set_input_shape(x, SHAPE)
        context.set_tensor_address(x, image.data_ptr())
        context.set_tensor_address(y, scores.data_ptr())
        assert context.execute_async_v3(stream.handle)
        assert (len(simulated.compiled), len(simulated.compiled_later)) == counts
        stream.run(partial(image.fill_, 1.0))
        stream.synchronize()
        stream.capture(partial(context.execute_async_v3, stream.handle))
        assert ("fallback kernels" in "".join(recorder.texts)) == (strategy == "LAZY")


def test_another_profile_keeps_the_shapes_and_has_its_own_limits(engine: LoadedEngine, stream: HostStream) -> None:
    context, _image, _scores = ready(engine, stream)
    raw, (x,) = context._context, engine.inputs
    assert raw.set_optimization_profile_async(1, stream.handle)
    assert raw.get_tensor_shape(x) == SHAPE
    with pytest.raises(BackendError, match="is outside profile 1"):
        context.enqueue()


def test_kernels_are_not_lost_where_a_cache_is_not_serialized(
    gpu: Simulated, bundle: Bundle, stream: HostStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a process, which has no CUDA context any more; and they are kept before that."""
    gpu.plans.add(bundle)
    kept = tmp_path / "kernels"
    loaded = LoadedEngine(BACKEND, bundle.engine_path(), stream, kept)
    context, *memory = ready(loaded, stream)
    context.enqueue()
    stream.synchronize()
    assert memory
    loaded.save_kernels()
    blob = kept.read_bytes()
    monkeypatch.setattr(RuntimeCache, "has_cuda", False)
    loaded.close()
    assert kept.read_bytes() == blob


def test_kernels_are_kept_by_plan_gpu_and_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRTKIT_CACHE_DIR", str(tmp_path))
    keys = ("a", "L4 driver 1"), ("a", "L4 driver 2"), ("a", "A10 driver 1"), ("b", "L4 driver 1")
    assert len({cache_file(*key) for key in keys}) == len(keys)
    assert cache_file(*keys[0]) == cache_file(*keys[0])


@pytest.mark.parametrize("kept", [False, True])
def test_a_closed_engine_is_gone(kept: bool, gpu: Simulated, engine: LoadedEngine, stream: HostStream) -> None:
    context, _image, _scores = ready(engine, stream)
    context.enqueue()
    stream.synchronize()
    raw = weakref.ref(gpu.runtimes[-1].engines[-1])
    if not kept:
        del context
    engine.close()
    gc.collect()
    assert (raw() is not None) == kept  # a context keeps its engine


def test_a_repeating_error_does_not_fill_the_memory() -> None:
    recorder = error_recorder(BACKEND, has_gpu=True)
    for number in range(10_000):
        recorder.report_error(None, f"warning {number}")
    assert len(recorder.texts) < 200
    assert recorder.texts[-1] == "warning 9999"
