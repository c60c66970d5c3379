"""`IRuntimeConfig` and `IRuntimeCache`: kernels that TensorRT-RTX compiles for a GPU at first use."""

from __future__ import annotations

import json
from typing import Any

ENVIRONMENT = "simulated GPU"
"""A cache of another environment is refused."""


class RuntimeCache:
    """The kernels that contexts have compiled, by name. has_cuda: whether there is a CUDA context yet."""

    has_cuda = True

    def __init__(self) -> None:
        self.kernels: set[str] = set()

    def serialize(self) -> bytes | None:
        """Return the kernels; None without a CUDA context, as when a process ends."""
        if not self.has_cuda:
            return None
        return json.dumps([ENVIRONMENT, sorted(self.kernels)]).encode()

    def deserialize(self, blob: bytes) -> bool:
        """Take kernels that were kept; refuse those of another GPU, and what is no cache."""
        try:
            environment, kernels = json.loads(blob)
        except ValueError:
            return False
        if environment != ENVIRONMENT:
            return False
        self.kernels = set(kernels)
        return True


class RuntimeConfig:
    """How contexts compile and launch. The strategies are those of TensorRT-RTX, of which nothing is computed."""

    def __init__(self) -> None:
        self.cuda_graph_strategy: object = None
        self.dynamic_shapes_kernel_specialization_strategy: object = None
        self.cache: RuntimeCache | None = None
        self.is_user_managed = False

    @property
    def is_lazy(self) -> bool:
        """Whether kernels are compiled in the background, which is TensorRT-RTX's default."""
        strategy: Any = self.dynamic_shapes_kernel_specialization_strategy
        return strategy is None or strategy.name == "LAZY"

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        """Choose who gives contexts their scratch memory."""
        self.is_user_managed = strategy.name == "USER_MANAGED"

    def create_runtime_cache(self) -> RuntimeCache:
        """Return an empty cache."""
        return RuntimeCache()

    def set_runtime_cache(self, cache: RuntimeCache) -> bool:
        """Let contexts share kernels."""
        self.cache = cache
        return True
