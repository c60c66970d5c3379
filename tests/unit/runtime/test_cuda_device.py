"""`CudaStream` on a stand-in for torch.cuda that keeps CUDA's rules of captures and of pinned memory."""

from __future__ import annotations

import gc
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trtkit.backends.gpu import Gpu
from trtkit.errors import BackendError
from trtkit.runtime import device
from trtkit.runtime.device import CudaStream, release_memory

if TYPE_CHECKING:
    from collections.abc import Callable


class Cuda:
    """CUDA as one process sees it. freed: how often all cached memory was given back. pinned: bytes by address.

    Captures of mode `global` fail if any thread allocates meanwhile; those of `thread_local` only for their own.
    Source: cudaThreadExchangeStreamCaptureMode; torch/cuda/graphs.py, which frees cached memory before a capture.
    """

    def __init__(self) -> None:
        self.freed = self.handles = 0
        self.pinned: dict[int, int] = {}
        self.limit = 1 << 40
        self.capturing: tuple[str, int, list[str]] | None = None
        self.pools: list[Any] = []

    def allocate(self) -> None:
        """Call cudaMalloc from this thread."""
        if self.capturing is not None:
            mode, thread, faults = self.capturing
            if mode == "global" or thread == threading.get_ident():
                faults.append("operation failed due to a previous error during capture")

    def begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        self.pools.append(pool)
        self.capturing = capture_error_mode, threading.get_ident(), []

    def end(self) -> None:
        assert self.capturing is not None
        (_, _, faults), self.capturing = self.capturing, None
        if faults:
            raise RuntimeError(f"CUDA error: {faults[0]}")

    def pool(self) -> tuple[int, int]:
        self.handles += 1
        return 0, self.handles

    def register(self, address: int, size: int, _flags: int) -> int:
        if sum(self.pinned.values()) + size > self.limit:
            return 2
        self.pinned[address] = size
        return 0

    def unregister(self, address: int) -> int:
        del self.pinned[address]
        return 0

    def free_cached(self) -> None:
        self.freed += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    runtime = SimpleNamespace(cudaHostRegister=cuda.register, cudaHostUnregister=cuda.unregister)
    replaced: dict[str, Callable[..., Any]] = {
        "Stream": lambda: SimpleNamespace(cuda_stream=1),
        "stream": lambda _stream: nullcontext(),
        "CUDAGraph": lambda: SimpleNamespace(capture_begin=cuda.begin, capture_end=cuda.end, replay=lambda: None),
        "graph_pool_handle": cuda.pool,
        "empty_cache": cuda.free_cached,
        "synchronize": cuda.free_cached,
        "is_available": lambda: True,
        "cudart": lambda: runtime,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_host_emptyCache", cuda.free_cached, raising=False)
    return cuda


def in_another_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_another_threads_allocation_does_not_end_a_capture(cuda: Cuda) -> None:
    stream = CudaStream()
    graphs = [stream.capture(lambda: in_another_thread(cuda.allocate)) for _ in range(2)]
    assert None not in graphs
    assert len(set(cuda.pools)) == 1  # graphs of a stream share their memory
    assert cuda.freed == 0


@pytest.mark.parametrize("fault", ["allocates", "is refused"])
def test_a_capture_that_fails_gives_no_graph(fault: str, cuda: Cuda, caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> None:
        raise BackendError("TensorRT refused the engine")

    assert CudaStream().capture(cuda.allocate if fault == "allocates" else refuse) is None
    assert cuda.capturing is None  # it has ended
    assert "a CUDA graph was not captured, so its work is launched" in caplog.text


def test_pinned_memory_has_its_own_size_and_is_given_back(cuda: Cuda) -> None:
    memory = CudaStream().host_memory(5000)
    assert memory.nbytes == sum(cuda.pinned.values()) == 5000  # torch would pin 8192
    view = memory[:10]
    del memory
    gc.collect()
    assert cuda.pinned
    del view
    gc.collect()
    assert not cuda.pinned


def test_memory_that_is_not_pinned_is_an_error(cuda: Cuda) -> None:
    cuda.limit = 4096
    with pytest.raises(BackendError, match="CUDA refused to pin 5000 bytes of host memory: error 2") as caught:
        CudaStream().host_memory(5000)
    assert "lower `--host-cache-gib`" in str(caught.value.fix)


def test_released_memory_includes_pinned_blocks(cuda: Cuda) -> None:
    release_memory()
    assert cuda.freed == 2


def test_a_gpu_that_torch_cannot_use_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Networks would run on the CPU, and nobody would know why."""
    monkeypatch.setattr(device, "list_gpus", lambda: (Gpu("NVIDIA L4", 23034, 89, "570.86.15"),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device._warn_of_torch.cache_clear()
    assert [device.find_device(), device.find_device()] == [None, None]
    assert caplog.text.count("networks run on the CPU, not on the GPU (NVIDIA L4): torch was built without CUDA") == 1
    assert "fix: install a build of torch for CUDA" in caplog.text
    device._warn_of_torch.cache_clear()
