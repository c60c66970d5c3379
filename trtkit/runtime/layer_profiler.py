"""How long each layer of an engine takes, as TensorRT tells its profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtkit.backends import Backend


def layer_profiler(backend: Backend) -> Any:
    """Return an IProfiler. Its `seconds` are by layer, in the order that they were told; equal names are added up."""
    base: Any = backend.trt.IProfiler

    class LayerProfiler(base):  # type: ignore[misc]  # TensorRT's class is known when it is loaded
        def __init__(self) -> None:
            base.__init__(self)
            self.seconds: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.seconds[layer_name] = self.seconds.get(layer_name, 0.0) + ms / 1e3

    return LayerProfiler()
