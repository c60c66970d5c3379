"""Ask whether a target can compute what a config quantizes to, before a model is quantized for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.quantization.jobs import CHECK_TARGET, TargetRequest
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig
    from trtkit.config.targets import Target
    from trtkit.jobs.runner import Runner


def check_quantization(
    config: ModelConfig, target: Target, backend: str, runner: Runner, fallback: str | None = None
) -> None:
    """Refuse types that the target's GPUs cannot compute in. fallback: the method of layers that a budget leaves.

    Raises ConfigError.
    """
    runner.run(CHECK_TARGET, TargetRequest(config, target, backend, resolve(config).interface == "tokens", fallback))
