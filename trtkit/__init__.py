"""trtkit: turn models into TensorRT engines, verify them, measure them and deploy them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.lazy_names import lazy_names
from trtkit.version import __version__

if TYPE_CHECKING:
    from trtkit.api import (
        bench,
        build,
        compare,
        deploy,
        evaluate,
        evaluate_images,
        evaluate_tasks,
        export,
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
    "compare",
    "deploy",
    "evaluate",
    "evaluate_images",
    "evaluate_tasks",
    "export",
    "load_config",
    "open_model",
    "plan",
    "quantize",
    "verify",
]


def _wait_briefly() -> None:
    from trtkit.threads import wait_briefly

    wait_briefly()


__getattr__ = lazy_names(
    __name__,
    {
        "trtkit.api": (
            "load_config",
            "build",
            "verify",
            "quantize",
            "export",
            "compare",
            "plan",
            "deploy",
            "bench",
            "evaluate",
            "evaluate_images",
            "evaluate_tasks",
        ),
        "trtkit.runtime.model": ("open_model",),
        "trtkit.llm": ("LLM", "AsyncLLM"),
        "trtkit.benchmarking.request": ("Load",),
        "trtkit.llm.sampling.params": ("SamplingParams",),
        "trtkit.llm.scheduler": ("ScheduleOptions", "SchedulingParams"),
    },
    _wait_briefly,
)


def __dir__() -> list[str]:
    """Return what the module has, names not imported yet among them."""
    return sorted({*globals(), *__all__})
