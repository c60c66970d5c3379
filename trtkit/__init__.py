"""trtkit: turn models into TensorRT engines, prove them right, measure them and deploy them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtkit.runtime.llm import LLM, AsyncLLM
    from trtkit.runtime.sampling.params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "SamplingParams", "__version__"]

_MODULES = {
    "LLM": "trtkit.runtime.llm",
    "AsyncLLM": "trtkit.runtime.llm",
    "SamplingParams": "trtkit.runtime.sampling.params",
}


def __getattr__(name: str) -> Any:
    """Import the Python API when it is first asked for: the command line must not wait for it."""
    import importlib

    from trtkit.threads import wait_briefly

    if name not in _MODULES:
        raise AttributeError(f"module `trtkit` has no attribute `{name}`")
    wait_briefly()
    return getattr(importlib.import_module(_MODULES[name]), name)
