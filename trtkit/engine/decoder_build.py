"""Build what the network API writes: decoder-only LLMs, in one child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.bundle.bundle import QUANTIZED
from trtkit.engine.jobs import COMPILE_DECODER
from trtkit.quantization.jobs import QUANTIZE_LLM
from trtkit.quantization.target import check_quantization

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import ModelConfig
    from trtkit.engine.plan import Plan
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


def describe_decoder(plan: Plan, folder: Path, runner: Runner) -> Json:
    """Write the network without building it; return steps, profiles and the network's record."""
    return _run(plan, folder, "", runner)


def compile_decoder(plan: Plan, folder: Path, engine: str, runner: Runner) -> Json:
    """Write the network and build it; return the same with the plan and metrics."""
    return _run(plan, folder, str(folder / engine), runner)


def quantize_decoder(config: ModelConfig, folder: Path, runner: Runner) -> Json:
    """Quantize an LLM as its config asks, into a folder that is new; return the steps."""
    folder.mkdir(parents=True)
    return runner.run(QUANTIZE_LLM, {"config": config.model_dump(mode="json"), "folder": str(folder)})


def makes_checkpoint(config: ModelConfig) -> bool:
    """Whether building an LLM begins with quantizing it."""
    asked = config.quantize
    return asked is not None and not asked.is_idle and not asked.keeps_stored


def _run(plan: Plan, folder: Path, plan_file: str, runner: Runner) -> Json:
    """Quantize where that is asked for, then write the network and build it where a plan is wanted."""
    if not makes_checkpoint(plan.config):
        return runner.run(COMPILE_DECODER, _arguments(plan, folder, plan_file))
    if plan_file:
        check_quantization(plan.config, plan.target, plan.backend, runner)
    made = quantize_decoder(plan.config, folder / QUANTIZED, runner)
    found = runner.run(COMPILE_DECODER, _arguments(plan, folder, plan_file) | {"quantized": str(folder / QUANTIZED)})
    return {**found, "steps": [*made["steps"], *found["steps"]]}


def _arguments(plan: Plan, folder: Path, plan_file: str) -> Json:
    return {
        "backend": plan.backend,
        "config": plan.config.model_dump(mode="json"),
        "folder": str(folder),
        "target": plan.target.model_dump(mode="json"),
        "plan": plan_file,
    }
