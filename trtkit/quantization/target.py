"""Ask whether a target can compute what a config quantizes to, before a model is quantized for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.engine.plan import is_decoder
from trtkit.quantization.jobs import CHECK_TARGET

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig
    from trtkit.config.targets import Target
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


def check_quantization(
    config: ModelConfig, target: Target, backend: str, runner: Runner, fallback: str | None = None
) -> None:
    """Refuse types that the target's GPUs cannot compute in. fallback: the method of layers that a budget leaves.

    Raises ConfigError.
    """
    described = {"config": config.model_dump(mode="json"), "target": target.model_dump(mode="json")}
    runner.run(CHECK_TARGET, {**described, "is_decoder": is_decoder(config), "fallback": fallback, "backend": backend})
