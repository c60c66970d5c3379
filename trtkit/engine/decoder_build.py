"""Build what the network API writes: decoder-only LLMs, in one child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.engine.jobs import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.engine.plan import Plan

Json = dict[str, Any]
JOB = "trtkit.engine.decoder_compile:compile_decoder"


def describe_decoder(plan: Plan, folder: Path, on_event: Callable[[Json], None]) -> Json:
    """Write the network without building it; return steps, profiles and the network's record."""
    return run(JOB, _arguments(plan, folder, ""), on_event)


def compile_decoder(plan: Plan, folder: Path, engine: str, on_event: Callable[[Json], None]) -> Json:
    """Write the network and build it; return the same with the plan and metrics."""
    return run(JOB, _arguments(plan, folder, str(folder / engine)), on_event)


def _arguments(plan: Plan, folder: Path, plan_file: str) -> Json:
    return {
        "backend": plan.backend,
        "config": plan.config.model_dump(mode="json"),
        "folder": str(folder),
        "target": plan.target.model_dump(mode="json"),
        "plan": plan_file,
    }
