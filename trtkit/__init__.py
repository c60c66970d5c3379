"""trtkit: turn models into TensorRT engines, verify them, measure them and deploy them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.version import __version__

if TYPE_CHECKING:
    from trtkit.api import (
        bench,
        build,
        deploy,
        evaluate,
        evaluate_images,
        evaluate_tasks,
        load_config,
        plan,
        quantize,
        verify,
    )
    from trtkit.benchmarking.request import Load
    from trtkit.llm import LLM, AsyncLLM
    from trtkit.llm.sampling.params import SamplingParams
    from trtkit.llm.scheduler import ScheduleOptions, SchedulingParams
    from trtkit.runtime.model import open_model

__all__ = [
    "LLM",
    "AsyncLLM",
    "Load",
    "SamplingParams",
    "ScheduleOptions",
    "SchedulingParams",
    "__version__",
    "bench",
    "build",
    "deploy",
    "evaluate",
    "evaluate_images",
    "evaluate_tasks",
    "load_config",
    "open_model",
    "plan",
    "quantize",
    "verify",
]

_MODULES = {
    **dict.fromkeys(
        (
            "load_config",
            "build",
            "verify",
            "quantize",
            "plan",
            "deploy",
            "bench",
            "evaluate",
            "evaluate_images",
            "evaluate_tasks",
        ),
        "trtkit.api",
    ),
    "open_model": "trtkit.runtime.model",
    "LLM": "trtkit.llm",
    "AsyncLLM": "trtkit.llm",
    "Load": "trtkit.benchmarking.request",
    "SamplingParams": "trtkit.llm.sampling.params",
    "ScheduleOptions": "trtkit.llm.scheduler",
    "SchedulingParams": "trtkit.llm.scheduler",
}


def __getattr__(name: str) -> object:
    """Import a name of the Python API when it is first used: the command line does not wait for it."""
    import importlib

    from trtkit.threads import wait_briefly

    if name not in _MODULES:
        raise AttributeError(f"module `trtkit` has no attribute `{name}`")
    wait_briefly()
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return what the module has, names not imported yet among them."""
    return sorted({*globals(), *__all__})
