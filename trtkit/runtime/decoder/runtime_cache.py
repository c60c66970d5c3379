"""TensorRT-RTX compiles an engine's kernels for the GPU at first use; what it compiled is kept beside the engine."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.engine.bundle import Bundle


def context_with_cache(engine: Any, bundle: Bundle, stream: int) -> tuple[list[Any], Any]:
    """Return an execution context per profile, and the runtime cache they share; None where TensorRT has none.

    CUDA graphs are captured by the caller, so TensorRT is not told to. Source: docstrings of IRuntimeConfig.
    """
    config, cache = None, None
    if hasattr(engine, "create_runtime_config"):
        config = engine.create_runtime_config()
        cache = config.create_runtime_cache() if hasattr(config, "create_runtime_cache") else None
        if cache is not None:
            if _file(bundle).is_file():
                cache.deserialize(_file(bundle).read_bytes())  # one of another GPU or driver is refused, not used
            config.set_runtime_cache(cache)
    contexts = []
    for profile in range(engine.num_optimization_profiles):
        context = engine.create_execution_context() if config is None else engine.create_execution_context(config)
        context.set_optimization_profile_async(profile, stream)
        contexts.append(context)
    return contexts, cache


def save_cache(cache: Any, bundle: Bundle) -> None:
    """Write the cache for the next start; a bundle that cannot be written to works without."""
    if cache is None:
        return
    partial = _file(bundle).with_suffix(".partial")
    with contextlib.suppress(OSError):
        partial.write_bytes(bytes(cache.serialize()))
        partial.replace(_file(bundle))


def _file(bundle: Bundle) -> Path:
    return bundle.path / "engines" / "runtime.cache"
