"""The job that refuses types that a target cannot compute in, before a model is quantized for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.backends import load_backend
from trtkit.jobs.events import Phase
from trtkit.network.targets import check_named_types
from trtkit.quantization.vision.onnx_model import check_options
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from trtkit.jobs.job import JobContext
    from trtkit.quantization.jobs import TargetRequest


def check_target(request: TargetRequest, context: JobContext) -> None:
    """Refuse methods that are not for vision models, and types that a target's GPUs cannot compute in.

    Raises ConfigError.
    """
    options, target = request.config.quantize, request.target
    assert options is not None
    context.report(Phase("check target"))
    if resolve(request.config).interface == "arrays":
        check_options(options)
    types = options.types(request.fallback)
    check_named_types(types, target.name, target.compute_capabilities, load_backend(request.backend).features)
