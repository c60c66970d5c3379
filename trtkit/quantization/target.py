"""Ask whether a target can compute what a config quantizes to, before a model is quantized for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.engine.plan import is_decoder
from trtkit.jobs.runner import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.config.schema import ModelConfig
    from trtkit.config.targets import Target

Json = dict[str, Any]
CHECK_JOB = "trtkit.quantization.check:check_target"


def check_quantization(
    config: ModelConfig, target: Target, backend: str, on_event: Callable[[Json], None], fallback: str | None = None
) -> None:
    """Refuse types that the target's GPUs cannot compute in. fallback: the method of layers that a budget leaves.

    Raises ConfigError.
    """
    described = {"config": config.model_dump(mode="json"), "target": target.model_dump(mode="json")}
    run(CHECK_JOB, {**described, "is_decoder": is_decoder(config), "fallback": fallback, "backend": backend}, on_event)
