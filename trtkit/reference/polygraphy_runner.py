"""A Polygraphy runner, so that its Comparator and data files work with the reference executor."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from trtkit.network.layer_graph import read_layers
from trtkit.reference.executor import Executor, Options
from trtkit.reference.precision import to_array

if TYPE_CHECKING:
    from trtkit.backends import Backend


class ReferenceRunner(BaseRunner):  # type: ignore[misc]
    """Computes a TensorRT network with torch; use it like Polygraphy's `TrtRunner`.

    Outputs are NumPy arrays; bf16 and fp8 outputs become fp32, which holds their values.
    """

    def __init__(self, backend: Backend, network: Any, options: Options | None = None, name: str | None = None) -> None:
        super().__init__(name=name, prefix="trtkit-reference")
        self._source = (backend, network, options)

    def activate_impl(self) -> None:
        backend, network, options = self._source
        self._executor = Executor(read_layers(backend, network), options)

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Return the inputs' types and shapes, -1 for dynamic sizes."""
        metadata = TensorMetadata()
        for spec in self._executor.inputs:
            metadata.add(spec.name, np.dtype(spec.dtype.numpy), list(spec.shape))
        return metadata

    def infer_impl(self, feed_dict: dict[str, Any]) -> OrderedDict[str, Any]:
        start = time.perf_counter()
        outputs = self._executor.run(feed_dict)
        self.inference_time = time.perf_counter() - start
        return OrderedDict((name, to_array(value)) for name, value in outputs.items())

    def deactivate_impl(self) -> None:
        """Release the compiled network."""
        del self._executor
