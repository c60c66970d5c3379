"""Build what comes through ONNX: prepare, then parse and compile, each in a child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.engine.jobs import COMPILE, DESCRIBE, PREPARE
from trtkit.engine.parsing import run_parser
from trtkit.quantization.target import check_quantization

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.engine.plan import Plan
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


def prepare_network(plan: Plan, folder: Path, runner: Runner) -> tuple[Json, Json]:
    """Prepare the ONNX file in `folder`/network; return what `prepare` said and the arguments of parsing jobs."""
    network_folder = folder / "network"
    network_folder.mkdir()
    arguments: Json = {"config": plan.config.model_dump(mode="json"), "folder": str(network_folder)}
    arguments["plugins"] = plan.uses_plugins
    prepared = runner.run(PREPARE, arguments)
    parse_arguments = {
        "backend": plan.backend,
        "onnx": str(network_folder / "model.onnx"),
        "grid_samples": prepared["grid_samples"],
        "opt_shapes": prepared["opt_shapes"],
    }
    if prepared["plugins"] and prepared["plugins"]["ops"]:
        parse_arguments["onnx"] = prepared["plugins"]["onnx"]
        parse_arguments["plugins"] = prepared["plugins"]["ops"]
        parse_arguments["capabilities"] = plan.target.compute_capabilities
    return prepared, parse_arguments


def describe_onnx(plan: Plan, folder: Path, runner: Runner) -> Json:
    """Prepare and parse without building; return steps, profiles and the network's record."""
    prepared, arguments = prepare_network(plan, folder, runner)
    described = run_parser(runner, DESCRIBE, arguments)
    return {"steps": prepared["steps"], "profiles": prepared["profiles"], **described}


def compile_onnx(plan: Plan, folder: Path, engine: str, runner: Runner) -> Json:
    """Prepare, parse and build; return the same with the plan and metrics. engine: the plan's path in `folder`."""
    if plan.config.quantize is not None:
        check_quantization(plan.config, plan.target, plan.backend, runner)
    prepared, arguments = prepare_network(plan, folder, runner)
    arguments |= {
        "profiles": prepared["profiles"],
        "target": plan.target.model_dump(mode="json"),
        "options": plan.config.build.model_dump(mode="json"),
        "plan": str(folder / engine),
    }
    compiled = run_parser(runner, COMPILE, arguments)
    return {"steps": prepared["steps"], "profiles": prepared["profiles"], **compiled}
