"""`Runtime` and `ICudaEngine`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from tests.simulated_tensorrt.context import Launch, SimulatedContext, SimulatedError
from tests.simulated_tensorrt.gpu import SimulatedGpu
from tests.simulated_tensorrt.runtime_config import RuntimeConfig
from trtkit.reference import Executor, Options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulated_tensorrt.plans import PlannedNetwork, Plans, Shapes
    from trtkit.reference import Rank
    from trtkit.runtime.host_device import HostDevice

ACTIVATION_BYTES, SCRATCH_BYTES = 1 << 15, 1 << 12
"""What a context takes of the device. Nothing is computed there: activations are the reference executor's."""


class Errors:
    """Where errors go: to the recorder that is set, else to the logger, as TensorRT's do."""

    def __init__(self, trt: Any, logger: Any) -> None:
        self.trt, self._logger = trt, logger
        self.recorder: Any = None

    def refuse(self, text: str) -> bool:
        """Tell an error; return False, which is what the call that failed returns."""
        if self.recorder is None:
            self._logger.log(self.trt.Logger.ERROR, text)
        else:
            self.recorder.report_error(self.trt.ErrorCodeTRT.FAILED_EXECUTION, text)
        return False


class SimulatedRuntime:
    """A Runtime on a HostDevice that knows some plans."""

    def __init__(self, trt: Any, device: HostDevice | SimulatedGpu, plans: Plans, logger: Any) -> None:
        self._device, self._plans, self._errors = device, plans, Errors(trt, logger)
        self._engines: list[weakref.ref[SimulatedEngine]] = []
        self.defer_weights_loading = False

    @property
    def engines(self) -> list[SimulatedEngine]:
        """The engines that somebody still has."""
        return [engine for engine in (each() for each in self._engines) if engine is not None]

    @property
    def error_recorder(self) -> Any:
        """The IErrorRecorder."""
        return self._errors.recorder

    @error_recorder.setter
    def error_recorder(self, recorder: Any) -> None:
        self._errors.recorder = recorder

    def deserialize_cuda_engine(self, plan: bytes) -> SimulatedEngine | None:
        """Return the engine of a plan, None for one that cannot be loaded."""
        network = self._plans.network(plan)
        if network is None:
            self._errors.refuse("Serialization assertion failed: the plan is of no engine that is known here")
            return None
        if network.version not in ("", installed := self._errors.trt.__version__):
            self._errors.refuse(f"The engine was built with version {network.version}, the library has {installed}")
            return None
        if (present := self._device.compute_capability) is not None:
            runs_on = network.compute_capabilities
            if runs_on and present not in runs_on:
                self._errors.refuse(f"The engine cannot run on this GPU, which has compute capability {present / 10}")
                return None
        deferred = bytes(plan) if self.defer_weights_loading else None
        self.defer_weights_loading = False  # it is about the next engine
        engine = SimulatedEngine(self._errors.trt, self._device, network, self._errors, deferred)
        self._engines.append(weakref.ref(engine))
        return engine


class ContextRanks:
    """A Rank whose exchanges are those of the context that computes. count: how many ranks the engine was built for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.communicator: Rank | None = None

    @property
    def rank(self) -> int:
        """Which rank the context's communicator has."""
        assert self.communicator is not None
        return self.communicator.rank

    def exchange(self, key: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Exchange through the context's communicator, whose ranks share host memory."""
        assert self.communicator is not None
        return [part.to(tensor.device) for part in self.communicator.exchange(key, tensor.cpu())]

    def leave(self) -> None:
        """Do nothing."""


class SimulatedEngine:
    """An ICudaEngine: its network, its tensors, and the contexts that use it.

    deferred: the plan, if its weights are loaded later.
    compiled, compiled_later: profile and shapes of which kernels were compiled while the caller waited (EAGER), and in
    the background (LAZY).
    """

    def __init__(
        self,
        trt: Any,
        device: HostDevice | SimulatedGpu,
        network: PlannedNetwork,
        errors: Errors,
        deferred: bytes | None = None,
    ) -> None:
        self._deferred = deferred
        self.loads = 0
        self.trt, self.device, self.network, self.errors = trt, device, network, errors
        self.inputs, self.outputs = (
            {spec.name: spec for spec in map(network.layers.spec, slots)}
            for slots in (network.layers.inputs, network.layers.outputs)
        )
        self.tensors = {**self.inputs, **self.outputs}
        self._aliases: dict[str, str] = dict(_cache_updates(network))
        self.ranks = ContextRanks(network.ranks)
        self._executors: dict[tuple[tuple[int, ...], ...], Executor] = {}
        self._contexts: list[weakref.ref[SimulatedContext]] = []
        self.has_collectives = any(node.kind == "DIST_COLLECTIVE" for node in network.layers.nodes)
        self._budget_bytes = self.streamable_weights_size
        is_later = network.is_streamable or deferred is not None
        self._weights: torch.Tensor | None = None if is_later else self._resident(network.weight_bytes)
        self.compiled: list[tuple[int, tuple[tuple[int, ...], ...]]] = []
        self.compiled_later: list[tuple[int, tuple[tuple[int, ...], ...]]] = []

    def executor(self, shapes: Shapes) -> Executor:
        """Return what computes the network at the inputs' shapes: on a GPU one for each, as engines compile kernels.

        It knows all sizes, so a run copies nothing between host and GPU, and a CUDA graph holds it.
        """
        is_gpu = isinstance(self.device, SimulatedGpu)
        key = tuple(shapes.values()) if is_gpu else ()
        if key not in self._executors:
            layers = self.network.at(shapes) if is_gpu else self.network.layers
            ranks = self.ranks if self.network.ranks > 1 else None
            options = Options(device="cuda" if is_gpu else "cpu", in_place_caches=True, ranks=ranks)
            self._executors[key] = Executor(layers, options)
            if is_gpu:
                torch.cuda.current_stream().synchronize()  # another stream may be the next to use its constants
        return self._executors[key]

    @property
    def contexts(self) -> list[SimulatedContext]:
        """The contexts that somebody still has."""
        return [context for context in (each() for each in self._contexts) if context is not None]

    @property
    def streamable_weights_size(self) -> int:
        """Bytes of weights that may stay on the host; 0 if the engine was built without the flag."""
        return self.network.weight_bytes if self.network.is_streamable else 0

    @property
    def device_memory_size_v2(self) -> int:
        """Bytes on the device that a context takes in its largest profile."""
        return max(map(self.get_device_memory_size_for_profile_v2, range(self.num_optimization_profiles)))

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        """Bytes that a context takes in a profile, here less in later ones; more if weights are streamed through."""
        return ACTIVATION_BYTES // (profile + 1) + (SCRATCH_BYTES if self.is_streaming else 0)

    @property
    def weight_streaming_budget_v2(self) -> int:
        """Bytes of weights on the device."""
        return self._budget_bytes

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, budget: int) -> None:
        """Set it; if it is refused, it stays as it is and nothing is raised."""
        if not self.network.is_streamable:
            self.errors.refuse("setWeightStreamingBudgetV2: kWEIGHT_STREAMING is not set")
        elif budget < 0:
            self.errors.refuse(f"setWeightStreamingBudgetV2: {budget} is negative")
        elif self.contexts:
            self.errors.refuse("setWeightStreamingBudgetV2: there are active execution contexts")
        else:
            self._budget_bytes = min(budget, self.streamable_weights_size)
            self._weights = self._resident(self._budget_bytes)

    @property
    def is_streaming(self) -> bool:
        """Whether weights are copied to the device while it runs."""
        return self._budget_bytes < self.streamable_weights_size

    @property
    def weights_loaded(self) -> bool:
        """Whether weights are on the device; those that are not deferred always are."""
        return self._deferred is None or self._weights is not None

    def load_weights(self, blob: bytes) -> bool:
        """Copy deferred weights to the device."""
        if self._deferred is None or self._weights is not None or bytes(blob) != self._deferred:
            return self.errors.refuse("loadWeights: weights are not deferred, are loaded, or are of another plan")
        if self.device.free_bytes < self.network.weight_bytes:
            return self.errors.refuse("Cuda failure: 2 (out of memory)")
        self._weights = self._resident(self.network.weight_bytes)
        self.loads += 1
        return True

    def unload_weights(self) -> bool:
        """Free deferred weights. Raises SimulatedError while work of the engine is in flight."""
        if self._deferred is None or self._weights is None:
            return self.errors.refuse("unloadWeights: weights are not deferred, or not loaded")
        for _, stream in self.device.streams.items():
            if any(isinstance(work, Launch) and work.context.engine is self for work in stream.pending):
                raise SimulatedError("weights are unloaded while the engine's work is in flight")
        self._weights = None
        return True

    def _resident(self, size_bytes: int) -> torch.Tensor:
        """Return the device's memory for weights."""
        return self.device.allocate((size_bytes,), torch.uint8)

    @property
    def num_io_tensors(self) -> int:
        """How many inputs and outputs there are."""
        return len(self.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        """How many profiles there are; one where all shapes are static."""
        return max(len(self.network.profiles), 1)

    def get_tensor_name(self, index: int) -> str:
        """Return a tensor's name."""
        name: str = list(self.tensors)[index]
        return name

    def get_tensor_mode(self, name: str) -> Any:
        """Return INPUT or OUTPUT."""
        return self.trt.TensorIOMode.INPUT if name in self.inputs else self.trt.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        """Return the DataType."""
        return getattr(self.trt.DataType, self.tensors[name].dtype.tensorrt)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape, -1 where it is dynamic."""
        return self.tensors[name].shape or ()

    def get_tensor_location(self, name: str) -> Any:
        """Return HOST for tensors that shapes are worked out from."""
        return self.trt.TensorLocation.HOST if self.is_shape_inference_io(name) else self.trt.TensorLocation.DEVICE

    def is_shape_inference_io(self, name: str) -> bool:
        """Whether shapes are worked out from the tensor's values."""
        return self.tensors[name].is_shape

    def get_aliased_input_tensor(self, name: str) -> str | None:
        """Return the cache that an output updates in place, None for other tensors."""
        return self._aliases.get(name)

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[tuple[int, ...]]:
        """Return the least, the optimal and the largest shape."""
        if not self.network.profiles or name not in self.network.profiles[profile]:
            return [self.get_tensor_shape(name)] * 3
        shapes = self.network.profiles[profile][name]
        return [shapes.min, shapes.opt, shapes.max]

    def create_runtime_config(self) -> RuntimeConfig:
        """Return an IRuntimeConfig, as TensorRT-RTX has it."""
        return RuntimeConfig()

    def create_execution_context(self, config: RuntimeConfig | None = None) -> SimulatedContext | None:
        """Return a context on profile 0; None if it has the wrong strategy or the device is full."""
        config = config or RuntimeConfig()
        if self.network.requires_user_memory and not config.is_user_managed:
            self.errors.refuse(
                "Engine was built with BuilderFlag::kREQUIRE_USER_ALLOCATION. Execution context creation requires "
                "ExecutionContextAllocationStrategy::kUSER_MANAGED allocation strategy."
            )
            return None
        if self.device.free_bytes < (1 if config.is_user_managed else self.device_memory_size_v2):
            self.errors.refuse("Cuda failure: 2 (out of memory)")
            return None
        if self._weights is None and self._deferred is None:
            self._weights = self._resident(self._budget_bytes)
        context = SimulatedContext(self, config)
        self._contexts.append(weakref.ref(context))
        return context


def _cache_updates(network: PlannedNetwork) -> Iterator[tuple[str, str]]:
    """Yield each output that updates a cache in place, with the cache's name."""
    layers = network.layers
    for node in layers.nodes:
        if node.kind == "KV_CACHE_UPDATE":
            yield layers.spec(node.outputs[0]).name, layers.spec(node.inputs[0]).name
