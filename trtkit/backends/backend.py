"""Load a TensorRT library as a `Backend` value."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trtkit.backends.gpu import Gpu, list_gpus
from trtkit.errors import BackendError
from trtkit.extras import install


@dataclass(frozen=True)
class Features:
    """What a TensorRT library can do. Code checks these, never the library's name.

    needs_gpu: building needs the GPU that will run the engine.
    plugins: plugin layers can be added and parsed.
    compute_capabilities: SM numbers that an engine can be built for; empty if it is built for the present GPU.
    nms, non_zero, moe: whether the library can run the layer.
    untested: compute capabilities that the library's loader accepts, but NVIDIA's support matrices do not list.
    """

    needs_gpu: bool
    plugins: bool
    compute_capabilities: tuple[int, ...]
    nms: bool
    non_zero: bool
    moe: bool
    untested: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Library:
    """A library's module, its extra and its features."""

    module: str
    extra: str
    features: Features


BACKENDS = {
    "tensorrt": _Library("tensorrt", "tensorrt", Features(True, True, (), True, True, True)),
    "tensorrt_rtx": _Library(
        "tensorrt_rtx", "rtx", Features(False, False, (75, 80, 86, 89, 120, 121), False, False, False, (80,))
    ),
}


@dataclass(frozen=True, eq=False)
class Backend:
    """A loaded TensorRT library. `trt` is its Python module."""

    name: str
    version: str
    features: Features
    trt: Any

    def logger(self, severity: str = "WARNING") -> Any:
        """Return the library's own logger, which writes messages of at least `severity` to stderr.

        TensorRT keeps the first logger of a process for its global messages, so keep a reference to it.
        """
        return self.trt.Logger(getattr(self.trt.Logger, severity))

    def new_network(self, builder: Any) -> Any:
        """Return an empty network, strongly typed; that is a flag only in libraries where it is optional."""
        flag = getattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return builder.create_network(0 if flag is None else 1 << int(flag))

    def plugin_module(self) -> Any:
        """Return the library's `plugin` module. Raises BackendError if it has none or it does not load."""
        name = f"{BACKENDS[self.name].module}.plugin"
        try:
            return importlib.import_module(name)
        except ImportError as error:
            fix = "leave `custom_ops.plugins` at `never`"
            raise BackendError(f"`{name}` does not load: {error}", "custom_ops.plugins", fix) from error

    def typed(self, layer: Any) -> Any:
        """Return `layer` cast to the class of its layer type, so that its parameters can be read."""
        layer_class = self._layer_classes.get(self._layer_type(layer))
        if layer_class is not None:
            layer.__class__ = layer_class
        return layer

    def layer_type(self, layer: Any) -> str:
        """Return the LayerType's name.

        A cast layer's own `type` may differ: an activation's is its kind of activation.
        """
        return self._layer_names[int(self._layer_type(layer))]

    def _layer_type(self, layer: Any) -> Any:
        return self.trt.ILayer.type.__get__(layer)

    @cached_property
    def _layer_names(self) -> dict[int, str]:
        """Each LayerType's name; cached since a lookup in TensorRT's enum scans all members."""
        return {int(layer_type): name for name, layer_type in self.trt.LayerType.__members__.items()}

    @cached_property
    def _layer_classes(self) -> dict[Any, Any]:
        """Map each LayerType to its interface class by name: MATRIX_MULTIPLY to IMatrixMultiplyLayer."""
        by_name = {name.lower(): getattr(self.trt, name) for name in dir(self.trt) if name.startswith("I")}
        classes = {}
        for name, layer_type in self.trt.LayerType.__members__.items():
            key = f"i{_INTERFACE_NAMES.get(name, name).replace('_', '').lower()}layer"
            if key in by_name:
                classes[layer_type] = by_name[key]
        return classes


# Layer types whose interface class is not named after them in camel case.
_INTERFACE_NAMES = {
    "CONDITIONAL_INPUT": "IF_CONDITIONAL_INPUT",
    "CONDITIONAL_OUTPUT": "IF_CONDITIONAL_OUTPUT",
}


def load_backend(name: str) -> Backend:
    """Import the TensorRT library `name` ("tensorrt" or "tensorrt_rtx").

    Raises BackendError if the name is unknown or the library is missing or does not load.
    """
    if name not in BACKENDS:
        raise BackendError(f"unknown backend `{name}`", fix=f"use one of auto, {', '.join(BACKENDS)}")
    library = BACKENDS[name]
    try:
        trt = importlib.import_module(library.module)
    except ImportError as error:
        raise BackendError(f"the `{name}` backend does not load: {error}", fix=install(library.extra)) from error
    return Backend(name, trt.__version__, library.features, trt)


def choose_backend(name: str = "auto") -> str:
    """Resolve `auto`: "tensorrt" if it is installed and a GPU is present, else "tensorrt_rtx"."""
    if name != "auto":
        return name
    has_tensorrt = importlib.util.find_spec("tensorrt") is not None
    return "tensorrt" if has_tensorrt and list_gpus() else "tensorrt_rtx"


def runs_on(name: str, compute_capability: int) -> bool:
    """Whether a library runs on a GPU; always true for full TensorRT, which builds on the GPU itself."""
    known = BACKENDS[name].features.compute_capabilities
    return not known or compute_capability in known or compute_capability // 10 == known[-1] // 10


def supported_gpus(name: str) -> str:
    """Return the compute capabilities that a library supports, such as `7.5, 8.6 and 12.x`; empty if it lists none."""
    features = BACKENDS[name].features
    known = features.compute_capabilities
    versions = [
        f"{capability / 10:.1f}{' (untested)' if capability in features.untested else ''}"
        for capability in known
        if capability // 10 != known[-1] // 10
    ]
    return f"{', '.join(versions)} and {known[-1] // 10}.x" if known else ""


def refused_gpus(name: str, gpus: Sequence[Gpu]) -> str:
    """Return why none of some GPUs can run a library's engines; empty if one can, or if there are no GPUs."""
    if not gpus or any(runs_on(name, gpu.compute_capability) for gpu in gpus):
        return ""
    return f"runs no engines of {name}, which takes compute capability {supported_gpus(name)}"


def same_version(first: str, second: str) -> bool:
    """Whether two versions agree in major, minor and patch, as far as both state them."""
    return all(a == b for a, b in zip(first.split(".")[:3], second.split(".")[:3], strict=False))
