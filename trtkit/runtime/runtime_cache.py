"""TensorRT-RTX's runtime cache: kernels are compiled for the GPU at first use and kept in the user's cache folder.

They are never kept in the bundle: kernels are code, and a bundle may come from an untrusted source.
"""

import contextlib
import hashlib
from pathlib import Path
from typing import Any

from trtkit.files import cache_folder, replace_file


def cache_file(plan_sha256: str, gpu: str) -> Path:
    """Return the file that caches a plan's kernels.

    gpu: name and driver; another GPU's or driver's kernels are refused.
    """
    environment = hashlib.sha256(gpu.encode()).hexdigest()[:16]
    return cache_folder() / "runtime" / f"{plan_sha256}-{environment}.cache"


class RuntimeCache:
    """The kernels of one engine, shared by its contexts. file: None if they are not kept.

    TensorRT-RTX runs dynamic shapes on fallback kernels until it has compiled better ones in the background (LAZY). A
    CUDA graph would keep the fallback, so a context whose launches are captured compiles first, and its caller waits
    (EAGER). The caller captures graphs; TensorRT's own capture is not enabled. Source: docstrings of IRuntimeConfig and
    DynamicShapesKernelSpecializationStrategy.
    """

    def __init__(self, trt: Any, engine: Any, file: Path | None) -> None:
        self._trt, self._file, self._saved = trt, file, b""
        self._cache = None
        if not hasattr(engine, "create_runtime_config"):  # before TensorRT 11
            return
        config = engine.create_runtime_config()
        self._cache = config.create_runtime_cache() if hasattr(config, "create_runtime_cache") else None
        if self._cache is not None and file is not None and file.is_file():
            self._cache.deserialize(file.read_bytes())  # one of another GPU or driver is refused, not used

    def execution_context(self, engine: Any, *, is_captured: bool) -> Any:
        """Return a new execution context that uses the cache, without scratch memory; None if TensorRT refuses.

        Engines built with `BuilderFlag.REQUIRE_USER_ALLOCATION` accept no other context, and shared memory works for
        all.
        """
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if not hasattr(engine, "create_runtime_config"):
            return engine.create_execution_context(strategy)
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        strategies = getattr(self._trt, "DynamicShapesKernelSpecializationStrategy", None)
        if strategies is not None:
            config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER if is_captured else strategies.LAZY
        if self._cache is not None:
            config.set_runtime_cache(self._cache)
        return engine.create_execution_context(config)

    def save(self) -> None:
        """Write new kernels for the next start, if any; with a full or read-only disk they are only compiled again."""
        kernels = None if self._cache is None or self._file is None else self._cache.serialize()
        if kernels is None or self._file is None:  # TensorRT gives None without a CUDA context, as at the end
            return
        blob = bytes(kernels)
        if blob == self._saved:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, blob)
            self._saved = blob
