"""Build what the network API writes: decoder-only LLMs, in one child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.bundle.bundle import QUANTIZED
from trtkit.jobs.runner import run
from trtkit.quantization.target import check_quantization

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.config.schema import ModelConfig
    from trtkit.engine.plan import Plan

Json = dict[str, Any]
JOB = "trtkit.engine.decoder_compile:compile_decoder"
QUANTIZE_JOB = "trtkit.quantization.llm.job:quantize_llm"


def describe_decoder(plan: Plan, folder: Path, on_event: Callable[[Json], None]) -> Json:
    """Write the network without building it; return steps, profiles and the network's record."""
    return _run(plan, folder, "", on_event)


def compile_decoder(plan: Plan, folder: Path, engine: str, on_event: Callable[[Json], None]) -> Json:
    """Write the network and build it; return the same with the plan and metrics."""
    return _run(plan, folder, str(folder / engine), on_event)


def quantize_decoder(config: ModelConfig, folder: Path, on_event: Callable[[Json], None]) -> Json:
    """Quantize an LLM as its config asks, into a folder that is new; return the steps."""
    folder.mkdir(parents=True)
    return run(QUANTIZE_JOB, {"config": config.model_dump(mode="json"), "folder": str(folder)}, on_event)


def makes_checkpoint(config: ModelConfig) -> bool:
    """Whether building an LLM begins with quantizing it."""
    asked = config.quantize
    return asked is not None and not asked.is_idle and asked.method != "as_stored"


def _run(plan: Plan, folder: Path, plan_file: str, on_event: Callable[[Json], None]) -> Json:
    """Quantize where that is asked for, then write the network and build it where a plan is wanted."""
    if not makes_checkpoint(plan.config):
        return run(JOB, _arguments(plan, folder, plan_file), on_event)
    if plan_file:
        check_quantization(plan.config, plan.target, plan.backend, on_event)
    made = quantize_decoder(plan.config, folder / QUANTIZED, on_event)
    found = run(JOB, _arguments(plan, folder, plan_file) | {"quantized": str(folder / QUANTIZED)}, on_event)
    return {**found, "steps": [*made["steps"], *found["steps"]]}


def _arguments(plan: Plan, folder: Path, plan_file: str) -> Json:
    return {
        "backend": plan.backend,
        "config": plan.config.model_dump(mode="json"),
        "folder": str(folder),
        "target": plan.target.model_dump(mode="json"),
        "plan": plan_file,
    }
