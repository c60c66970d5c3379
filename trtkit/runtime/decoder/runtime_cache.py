"""TensorRT-RTX compiles an engine's kernels for the GPU at first use; the user's cache keeps what it compiled.

Never the bundle: kernels are code, and a bundle comes from elsewhere.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from trtkit.engine.cache import cache_folder
from trtkit.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle


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
    """Write the cache for the next start; a full or read-only disk only costs time."""
    if cache is None:
        return
    file = _file(bundle)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, bytes(cache.serialize()))


def _file(bundle: Bundle) -> Path:
    return cache_folder() / "runtime" / f"{bundle.manifest.engines[-1].sha256}.cache"
