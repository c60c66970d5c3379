"""Which tensors a GPU would hold, and when the host would wait for it: all memory is the host's here.

A tensor is on the device if it lies in a HostDevice's memory, if it was created with `device=` or copied with
`.to(device)`, or if it was computed from one that is. Everything else is pageable host memory, or pinned.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.simulated_tensorrt.context import SimulatedError
from trtkit.errors import ExecutionError
from trtkit.llm.sampling import kernel
from trtkit.runtime import device as devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtkit.runtime.host_device import HostDevice, HostStream

_HOST, _PINNED, _DEVICE = "pageable", "pinned", "device"
_ATEN = torch.ops.aten
TOKENS = "tokens"
"""The wait for what was copied to pinned memory: the one that a step has."""
_SIZED_BY_DATA = (_ATEN.nonzero, _ATEN.masked_select, _ATEN._unique2, _ATEN.bincount, _ATEN.repeat_interleave)
_INDEXES = (_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_, _ATEN._unsafe_index)


class Residency:
    """Watches torch in this thread, while it is entered, and counts what a GPU would do.

    launches: work that was put on the device outside of CUDA graphs, by name. waits: what the host waited for.
    """

    def __init__(self, device: HostDevice) -> None:
        self.device = device
        self.launches: list[str] = []
        self.waits: list[str] = []
        self._places: dict[int, tuple[StorageWeakRef, str]] = {}
        self._written: dict[int, int] = {}
        self._writes = 0
        self._stream: HostStream | None = None
        self._waited_writes: dict[int, int] = {}
        self._paused, self._in_graph = 0, 0
        self._modes = _Functions(self), _Operations(self)

    def __enter__(self) -> Residency:
        self.device.watch = self
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
        self.device.watch = None

    def clear(self) -> None:
        """Forget what was counted."""
        self.launches.clear()
        self.waits.clear()

    @property
    def is_paused(self) -> bool:
        """Whether what runs is not the caller's: an engine's layers, or a kernel."""
        return bool(self._paused)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let torch compute what the device's own kernels would."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def on(self, stream: HostStream, *, in_graph: bool = False) -> Iterator[None]:
        """Run the work of a stream."""
        before, self._stream = self._stream, stream
        self._in_graph += in_graph
        try:
            yield
        finally:
            self._stream = before
            self._in_graph -= in_graph

    def launch(self, what: str) -> None:
        """Count work that is put on the device."""
        if not (self._paused or self._in_graph):
            self.launches.append(what)

    def wait(self, what: str) -> None:
        """Count a wait of the host. Raises ExecutionError in a capture, as CUDA does."""
        self.device.check_not_capturing(what)
        if self._in_graph:
            raise SimulatedError(f"a graph holds what the host waits for: {what}")
        if not self._paused:
            self.waits.append(what)

    def let_wait(self, stream: HostStream) -> None:
        """Note that a stream waits for what the caller's own stream has written so far."""
        self._waited_writes[stream.handle] = self._writes

    def check_written(self, tensor: torch.Tensor, stream: HostStream) -> None:
        """Raise ExecutionError if a stream gets work on what the caller's own stream has yet to write."""
        written = self._written.get(_key(tensor), 0)
        if written > self._waited_writes.get(stream.handle, 0) and self.place(tensor) == _DEVICE:
            what = "the stream has not waited for the current one, which has yet to write what it reads"
            raise ExecutionError(what, "stream", "call `wait_for_current` first, or write it in the stream's work")

    def place(self, tensor: torch.Tensor) -> str:
        """Return where a tensor is."""
        known = self._places.get(_key(tensor))
        if known is not None:
            return known[1]
        is_device = bool(tensor.numel()) and self.device.holds(tensor.data_ptr(), 1)
        self.put(tensor, _DEVICE if is_device else _HOST)
        return _DEVICE if is_device else _HOST

    def put(self, tensor: torch.Tensor, place: str) -> None:
        """Note where a tensor's memory is."""
        if len(self._places) > 1 << 14:
            gone = [key for key, (kept, _) in self._places.items() if kept.expired()]
            for key in gone:
                del self._places[key]
                self._written.pop(key, None)
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._places[reference.cdata] = reference, place

    def pin(self, memory: torch.Tensor) -> None:
        """Note that host memory is pinned."""
        self.put(memory, _PINNED)

    def note_write(self, tensor: torch.Tensor) -> None:
        """Note that the caller's own stream writes a tensor of the device's."""
        if self._stream is None and not self._paused:
            self._writes += 1
            self._written[_key(tensor)] = self._writes


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


class _Functions(TorchFunctionMode):
    """What tells host and device apart in Python: devices that are named, pinned memory, copies to NumPy."""

    def __init__(self, watch: Residency) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, function: Callable[..., Any], _types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        watch, named = self._watch, named or {}
        if watch.is_paused:
            return function(*arguments, **named)
        name = getattr(function, "__name__", "")
        tensor = arguments[0] if arguments and isinstance(arguments[0], torch.Tensor) else None
        if tensor is not None and name == "pin_memory":
            return self._pinned(tensor)
        if tensor is not None and name in ("numpy", "tolist", "__array__") and watch.place(tensor) == _DEVICE:
            if name != "tolist":
                raise SimulatedError("a tensor on the device cannot be read as a NumPy array: copy it to the host")
            watch.wait("values are read on the host")
        if tensor is not None and name == "cpu" and watch.place(tensor) == _DEVICE:
            return self._on_host(tensor)
        if tensor is not None and name == "to" and _names_device(arguments[1:], named):
            return self._moved(function, tensor, arguments, named)
        is_pinned = bool(named.pop("pin_memory", False)) if tensor is None else False  # torch for CPUs has none
        result = function(*arguments, **named)
        if is_pinned:
            watch.pin(result)
        elif isinstance(result, torch.Tensor) and tensor is None and named.get("device") is not None:
            watch.put(result, _DEVICE)
            watch.note_write(result)
            if name in ("tensor", "as_tensor"):
                watch.wait(f"`torch.{name}` copies pageable memory")
        return result

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._watch.paused():
            copy = tensor.clone()
        self._watch.pin(copy)
        return copy

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._watch.paused():
            copy = tensor.clone()
        self._watch.put(copy, _HOST)
        self._watch.wait("a copy to pageable memory")
        return copy

    def _moved(self, function: Callable[..., Any], tensor: torch.Tensor, arguments: Any, named: Any) -> torch.Tensor:
        """Copy a tensor to the device, where `device` is always taken to be that."""
        watch, source = self._watch, self._watch.place(tensor)
        with watch.paused():
            result: torch.Tensor = function(*arguments, **named)
            if source != _DEVICE and result.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                result = result.clone()
        if source == _DEVICE and result is tensor:
            return result
        watch.put(result, _DEVICE)
        watch.note_write(result)
        watch.launch("to")
        if source == _HOST or (source == _PINNED and not named.get("non_blocking")):
            watch.wait(f"`.to(device)` copies {source} memory")
        return result


def _names_device(arguments: Any, named: Any) -> bool:
    return "device" in named or any(isinstance(argument, torch.device | str) for argument in arguments)


class _Operations(TorchDispatchMode):
    """What each operation launches, and what it waits for."""

    def __init__(self, watch: Residency) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), named: Any = None) -> Any:
        watch, named = self._watch, named or {}
        if watch.is_paused:
            return function(*arguments, **named)
        tensors = [leaf for leaf in tree_leaves((arguments, named)) if isinstance(leaf, torch.Tensor)]
        places = [watch.place(tensor) for tensor in tensors]
        if _DEVICE not in places:
            return function(*arguments, **named)
        packet, name = function.overloadpacket, str(function).removeprefix("aten.")
        if packet is _ATEN.copy_:
            self._copy(places, is_blocking=not (len(arguments) > 2 and arguments[2]))
        elif packet is _ATEN._local_scalar_dense:
            watch.wait("a value is read on the host")
        elif packet in _SIZED_BY_DATA:
            watch.wait(f"`{name}` has a size that follows from data")
        else:
            self._check(packet, name, tensors, places)
        returns = function._schema.returns
        is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in returns)
        if is_view:
            return function(*arguments, **named)
        result = function(*arguments, **named)
        watch.launch(name)
        for argument, value in zip(function._schema.arguments, arguments, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, torch.Tensor):
                watch.note_write(value)
        for output in tree_leaves(result):
            if isinstance(output, torch.Tensor) and packet is not _ATEN.copy_:
                watch.put(output, _DEVICE)
                watch.note_write(output)
        return result

    def _copy(self, places: list[str], *, is_blocking: bool) -> None:
        """Count the wait of a copy between host and device."""
        if _HOST in places or (_PINNED in places and is_blocking):
            to_device = places[0] == _DEVICE
            kind = _HOST if _HOST in places else _PINNED
            self._watch.wait(f"a copy {'from' if to_device else 'to'} {kind} memory")

    def _check(self, packet: Any, name: str, tensors: list[torch.Tensor], places: list[str]) -> None:
        """Refuse what torch refuses: host and device memory in one kernel. Indices of the host's are copied."""
        mixed = [tensor for tensor, place in zip(tensors, places, strict=True) if place != _DEVICE and tensor.dim()]
        if not mixed:
            if packet in _INDEXES and any(tensor.dtype == torch.bool for tensor in tensors[1:]):
                self._watch.wait(f"`{name}` has a size that follows from data")
        elif packet in _INDEXES and places[0] == _DEVICE:
            self._watch.wait(f"`{name}` copies indices from pageable memory")
        else:
            raise SimulatedError(f"`{name}`: all tensors have to be on the same device; {places}")


def watch(device: HostDevice, replace: Callable[[Any, str, Any], object]) -> Residency:
    """Return what watches a device, once trtkit's code takes the device's tensors for a GPU's.

    replace: sets an attribute, such as pytest's `monkeypatch.setattr`.
    """
    residency = Residency(device)
    functions: dict[str, Callable[..., Any]] = {
        "is_host": lambda _device: False,
        "is_on_host": lambda tensor: residency.place(tensor) != _DEVICE,
        "start_copy": partial(_start_copy, residency),
    }
    for name, function in functions.items():
        replaced = getattr(devices, name)
        for module in list(sys.modules.values()):
            if vars(module).get(name) is replaced:
                replace(module, name, function)
    interpreted = kernel.kernels
    replace(kernel, "kernels", lambda **named: _WatchedKernels(residency, interpreted(**named)))
    return residency


def _start_copy(residency: Residency, tensor: torch.Tensor) -> Callable[[], Any]:
    residency.launch("copy to pinned memory")
    with residency.paused():
        host = tensor.clone()

    def arrived() -> Any:
        if not residency.is_paused:
            residency.waits.append(TOKENS)
        return host.numpy()

    with residency.paused():
        residency.pin(host)
    return arrived


class _WatchedKernels:
    """A module of Triton kernels on the device: they take no memory of the host's, and are a launch each."""

    def __init__(self, residency: Residency, module: Any) -> None:
        self._residency, self._module = residency, module

    def launch(self, *arguments: Any) -> None:
        """Launch the sampling kernels."""
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        if any(self._residency.place(tensor) != _DEVICE for tensor in tensors):
            raise SimulatedError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        for _ in self._module.KERNELS:
            self._residency.launch("kernel")
        with self._residency.paused():
            self._module.launch(*arguments)
