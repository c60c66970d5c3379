"""TensorRT-RTX compiles an engine's kernels for the GPU at first use; the user's cache keeps what it compiled.

Never the bundle: kernels are code, and a bundle comes from elsewhere.
"""

import contextlib
from pathlib import Path
from typing import Any

from trtkit.files import cache_folder, replace_file


def cache_file(plan_sha256: str) -> Path:
    """Return where the kernels of a plan are kept."""
    return cache_folder() / "runtime" / f"{plan_sha256}.cache"


class RuntimeCache:
    """The kernels of one engine, shared by its contexts. file: None if they are not to be kept.

    is_captured: TensorRT-RTX runs dynamic shapes on fallback kernels until it has compiled better ones, and a CUDA
    graph would keep the fallback; so they are compiled first. The caller captures graphs, TensorRT is not told to.
    Source: docstrings of IRuntimeConfig and DynamicShapesKernelSpecializationStrategy.
    """

    def __init__(self, trt: Any, engine: Any, file: Path | None, *, is_captured: bool) -> None:
        self._engine, self._file = engine, file
        self._config, self._cache = None, None
        self._strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if not hasattr(engine, "create_runtime_config"):  # before TensorRT 11
            return
        self._config = engine.create_runtime_config()
        self._config.set_execution_context_allocation_strategy(self._strategy)
        if is_captured and hasattr(trt, "DynamicShapesKernelSpecializationStrategy"):
            eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
            self._config.dynamic_shapes_kernel_specialization_strategy = eager
        self._cache = self._config.create_runtime_cache() if hasattr(self._config, "create_runtime_cache") else None
        if self._cache is not None:
            if file is not None and file.is_file():
                self._cache.deserialize(file.read_bytes())  # one of another GPU or driver is refused, not used
            self._config.set_runtime_cache(self._cache)

    def execution_context(self) -> Any:
        """Return a new execution context that uses it, without scratch memory; None if TensorRT refuses.

        Engines built with `BuilderFlag.REQUIRE_USER_ALLOCATION` take no other context, and shared memory suits all.
        """
        return self._engine.create_execution_context(self._strategy if self._config is None else self._config)

    def save(self) -> None:
        """Write the kernels for the next start; a full or read-only disk only costs time."""
        if self._cache is None or self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, bytes(self._cache.serialize()))
