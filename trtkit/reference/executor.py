"""Execution of a TensorRT network with torch, layer by layer: the correctness oracle on machines without a GPU."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trtkit.dtypes import BOOL, FP32, INT32, INT64
from trtkit.errors import ExecutionError, ProblemsError
from trtkit.reference.compile import Compiler
from trtkit.reference.layer import CompileSettings, RowReads, Tensor
from trtkit.reference.precision import Precision, to_tensor
from trtkit.reference.program import execute, observe, shortened, timed
from trtkit.sources.safetensors_file import release

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnxruntime

    from trtkit.dtypes import DType
    from trtkit.network.layer_graph import LayerGraph
    from trtkit.reference.program import LayerTimer, Program
    from trtkit.reference.ranks import Rank


WIDENINGS = (None, "fp32", "fp64")


@dataclass(frozen=True)
class Options:
    """Options of execution.

    widen: None for the network's own precision; "fp32" or "fp64" computes its fp16, bf16 and fp32 tensors in that type.
    device: a torch device. in_place_caches: KV-cache updates write into the input cache instead of a copy of it. ranks:
    this rank, for a network with collectives: a thread of a `Group` (see `run_ranks`), or a process (GlooRank).
    is_fast: outputs come from ONNX Runtime if it computes in the network's types, otherwise from torch on weights in
    the layouts of its kernels, with quantized ones as codes. Tensors between layers are still computed layer by layer.
    kept_calls: rows of constants that a call selects are read from their file and stay in memory for this many calls;
    None if all are mapped.
    """

    widen: str | None = None
    device: str = "cpu"
    in_place_caches: bool = False
    ranks: Rank | None = None
    is_fast: bool = False
    kept_calls: int | None = None


@dataclass(frozen=True)
class NetworkInput:
    """A network input. shape: -1 for dynamic sizes. is_shape: whether only shape arithmetic reads it, on the host."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    is_shape: bool = False


@dataclass(frozen=True, eq=False)
class _Accepted:
    """What an input accepts. dtypes: the first is its type on `device`. fixed: axes with their sizes."""

    spec: NetworkInput
    dtypes: tuple[torch.dtype, torch.dtype]
    device: torch.device
    fixed: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, spec: NetworkInput, precision: Precision) -> _Accepted:
        """Return what an input accepts if its network is computed in `precision`."""
        dtypes = precision.storage(spec.dtype), Precision().storage(spec.dtype)
        device = torch.device("cpu") if spec.is_shape else precision.device
        return cls(spec, dtypes, device, tuple((axis, size) for axis, size in enumerate(spec.shape) if size != -1))


class Executor:
    """A network compiled to torch. It shares the memory of the network's weights.

    Raises ExecutionError for an unsupported layer.
    """

    def __init__(self, layers: LayerGraph, options: Options | None = None) -> None:
        options = options or Options()
        if options.widen not in WIDENINGS:
            raise ExecutionError(f"unknown widening `{options.widen}`", fix="use one of none, fp32, fp64")
        self._ranks = options.ranks
        self.layers = layers
        self._precision = Precision(options.widen, torch.device(options.device))
        is_fast = options.is_fast and options.widen is None and self._precision.device.type == "cpu"
        is_whole = is_fast and options.ranks is None and not options.in_place_caches
        self._onnx_runtime = onnx_runtime_run(layers) if is_whole else None
        self.rows = RowReads(options.kept_calls)
        settings = CompileSettings(self._precision, options.in_place_caches, options.ranks, is_fast, rows=self.rows)
        self._memo = settings.memo
        self._settings = settings
        compiler, self._program = self._compiled(settings)
        self._observed: Program | None = None if settings.packs else self._program
        self._shortened: dict[tuple[frozenset[int], tuple[str, ...]], Program] = {}
        self._slots = {spec.name: compiler.slot(spec.index) for spec in self.layers.specs if spec is not None}
        self._known = compiler.known
        self.inputs = tuple(self._input_spec(slot) for slot in self.layers.inputs)
        self._accepted = [_Accepted.of(spec, self._precision) for spec in self.inputs]
        self.output_names = tuple(self._name(slot) for slot in self.layers.outputs)

    def run(
        self,
        inputs: Mapping[str, Any],
        keep: Iterable[str] | None = None,
        on_tensor: Callable[[str, Tensor], None] | None = None,
        on_layer: LayerTimer | None = None,
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        """Return the outputs by name. inputs: arrays or tensors by name.

        keep: names of further tensors to return, or "all"; tensors inside loops and branches are not available.
        on_tensor: called with each tensor's name and value when it is computed; the value is valid during the call.
        on_layer: called with each layer's name and seconds after it ran, if no tensor is requested. outputs: the
        outputs to compute if no tensor is requested; all if None. Raises ExecutionError for inputs that the network
        does not accept and for layers that fail.
        """
        checked = self._checked(inputs)
        wanted, names = self._wanted(keep), self.output_names
        program = self._layer_by_layer() if wanted or on_tensor is not None else self._program
        if self._onnx_runtime is not None and not wanted and (on_tensor, on_layer, outputs) == (None, None, None):
            return self._onnx_runtime(dict(zip((spec.name for spec in self.inputs), checked, strict=True)))
        values = list(program.initial)
        for slot, value in zip(self.layers.inputs, checked, strict=True):
            values[slot] = value
        kept: dict[int, Tensor] = {slot: values[slot] for slot in wanted.values() if values[slot] is not None}
        with torch.inference_mode(), self._memo:
            if wanted or on_tensor is not None:
                observe(program, values, self._observer(set(wanted.values()), kept, on_tensor))
            else:
                names = tuple(names if outputs is None else outputs)
                program = self._program_for(values, names)
                execute(program if on_layer is None else timed(program, on_layer), values)
        tensors = {
            name: self._known.get(slot) if kept.get(slot) is None else kept[slot] for name, slot in wanted.items()
        }
        results = {name: values[slot] for name, slot in zip(names, program.outputs, strict=True)}
        return {name: value for name, value in tensors.items() if value is not None} | results

    @property
    def has_session(self) -> bool:
        """Whether the outputs come from ONNX Runtime."""
        return self._onnx_runtime is not None

    @property
    def tensor_names(self) -> set[str]:
        return set(self._slots)

    def layer_seconds(self, inputs: Mapping[str, Any]) -> dict[str, float]:
        """Run once; return each layer's time in seconds, in execution order. Layers with the same name are added up."""
        seconds: dict[str, float] = {}
        self.run(inputs, on_layer=lambda name, took: seconds.update({name: seconds.get(name, 0.0) + took}))
        return seconds

    def leave_group(self) -> None:
        """Make the other ranks fail instead of waiting for this one."""
        if self._ranks is not None:
            self._ranks.leave()

    def _compiled(self, settings: CompileSettings) -> tuple[Compiler, Program]:
        compiler = Compiler(self.layers, settings)
        with torch.inference_mode():
            return compiler, compiler.network()

    def _layer_by_layer(self) -> Program:
        """Return the program that computes every tensor; a fast executor compiles it on demand."""
        if self._observed is None:
            compiler, self._observed = self._compiled(replace(self._settings, packs=False))
            self._known = compiler.known
        return self._observed

    def _program_for(self, values: Sequence[Any], outputs: tuple[str, ...]) -> Program:
        """Return the steps that compute some outputs from inputs like these."""
        empty = frozenset(slot for slot in self.layers.inputs if not values[slot].numel())
        if not empty and outputs == self.output_names:
            return self._program
        if (empty, outputs) not in self._shortened:
            slots = dict(zip(self.output_names, self._program.outputs, strict=True))
            chosen = tuple(slots[name] for name in outputs)
            self._shortened[empty, outputs] = shortened(self._program, empty, chosen)
        return self._shortened[empty, outputs]

    def _observer(
        self, wanted: set[int], kept: dict[int, Tensor], on_tensor: Callable[[str, Tensor], None] | None
    ) -> Callable[[int, Any], None]:
        def observer(slot: int, value: Any) -> None:
            if slot in wanted:
                kept[slot] = value
            if on_tensor is not None:
                on_tensor(self._name(slot), value)

        return observer

    def _wanted(self, keep: Iterable[str] | None) -> dict[str, int]:
        """Return the slots of the tensors to keep, by name."""
        if keep is None:
            return {}
        if keep == "all":
            return self._slots
        names = list(keep)
        for name in names:
            if name not in self._slots:
                raise ExecutionError(f"there is no tensor `{name}` in the network", fix='keep="all" returns all')
        return {name: self._slots[name] for name in names}

    def _checked(self, inputs: Mapping[str, Any]) -> list[Tensor]:
        """Return the inputs in the network's order, as tensors of the right type on the device."""
        names = [spec.name for spec in self.inputs]
        if inputs.keys() != set(names):
            unknown, missing = sorted(set(inputs) - set(names)), sorted(set(names) - set(inputs))
            what = [f"missing input `{name}`" for name in missing] + [f"unknown input `{name}`" for name in unknown]
            raise ExecutionError(", ".join(what), fix=f"the network's inputs are {', '.join(names)}")
        return [self._checked_input(accepted, inputs[accepted.spec.name]) for accepted in self._accepted]

    def _checked_input(self, accepted: _Accepted, value: Any) -> Tensor:
        """Return one input as a tensor. Raises ExecutionError if its type or shape does not fit."""
        spec = accepted.spec
        tensor = value if isinstance(value, torch.Tensor) else to_tensor(value, spec.name)
        if tensor.dtype not in accepted.dtypes:
            dtype = str(tensor.dtype).removeprefix("torch.")
            what = f"got type {dtype}; expected {spec.dtype}"
            raise ExecutionError(what, f"input `{spec.name}`", f"convert it to {spec.dtype.numpy}")
        shape = tensor.shape
        if len(shape) != len(spec.shape) or any(shape[axis] != size for axis, size in accepted.fixed):
            what = f"got shape {list(shape)}; expected {list(spec.shape)}"
            raise ExecutionError(what, f"input `{spec.name}`", "-1 means any size")
        if (tensor.dtype, tensor.device) == (accepted.dtypes[0], accepted.device):
            return tensor
        return tensor.to(device=accepted.device, dtype=accepted.dtypes[0])

    def _input_spec(self, slot: int) -> NetworkInput:
        spec = self.layers.spec(slot)
        assert spec.shape is not None
        return NetworkInput(spec.name, spec.dtype, spec.shape, spec.is_shape)

    def _name(self, slot: int) -> str:
        return self.layers.spec(slot).name


def run_ranks(executors: Sequence[Executor], inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Tensor]]:
    """Run one executor per rank concurrently and return their outputs. Raises the first rank's error."""

    def run(executor: Executor, rank_inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        try:
            return executor.run(rank_inputs)
        except Exception:
            executor.leave_group()
            raise

    with ThreadPoolExecutor(len(executors)) as pool:
        futures = [pool.submit(run, *pair) for pair in zip(executors, inputs, strict=True)]
        return [future.result() for future in futures]


Run = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
"""Maps inputs to outputs, by name."""

_TYPES = (FP32, INT64, INT32, BOOL)
"""Types that ONNX Runtime computes in on a CPU. It computes fp16 in fp32, and 8-bit types with other rounding."""


def onnx_runtime_run(graph: LayerGraph) -> Run | None:
    """Return a function that runs a network in ONNX Runtime, or None to leave it to torch.

    Torch keeps networks with more matrix products than convolutions, which would not be faster; types and layers for
    which ONNX Runtime has no kernels; and networks with assertions, which ONNX cannot express.
    """
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        return None
    count = Counter(node.kind for node in graph.nodes)
    if count["CONVOLUTION"] <= count["MATRIX_MULTIPLY"] or count["ASSERTION"]:
        return None
    if any(spec is not None and spec.dtype not in _TYPES for spec in graph.specs):
        return None
    session = _session(graph)
    if session is None:
        return None
    for held in (held for node in graph.nodes for held in node.weights.values()):
        release(held.raw)
    inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))

    def run(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        feed = {name: tensors[name].contiguous().numpy() for name in inputs}
        try:
            arrays = session.run(outputs, feed)
        except Exception as error:  # ONNX Runtime's own classes have no common base
            raise ExecutionError(f"ONNX Runtime: {error}", fix="runtime `reference` names the layer") from None
        return {name: torch.from_numpy(array) for name, array in zip(outputs, arrays, strict=True)}

    return run


def _session(graph: LayerGraph) -> onnxruntime.InferenceSession | None:
    """Return a session on the network, or None if ONNX or ONNX Runtime lacks one of its layers."""
    import onnxruntime

    from trtkit.network.onnx.from_layers import write_onnx

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="trtkit-") as folder:
        try:
            files = write_onnx(graph, Path(folder) / "network.onnx", inline_bytes=0)  # which would hold weights twice
        except ProblemsError:
            return None
        try:
            return onnxruntime.InferenceSession(str(files[0]), options, providers=["CPUExecutionProvider"])
        except Exception:  # ONNX Runtime's own classes have no common base; torch computes what it refuses
            return None
