"""Build what comes through ONNX: prepare, then parse and compile, each in a child process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trtkit.engine.compile import CompileRequest
from trtkit.engine.jobs import COMPILE, PREPARE, DiagnoseRequest, PreparedModel, PrepareRequest
from trtkit.engine.parsing import run_parser
from trtkit.engine.plan_file import CompiledNetwork, PlanRequest
from trtkit.quantization.target import check_quantization

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.engine.plan import Plan
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


def prepare_network(plan: Plan, folder: Path, runner: Runner) -> tuple[PreparedModel, CompileRequest]:
    """Prepare the ONNX file in `folder`/network; return it and how it is described."""
    network_folder = folder / "network"
    network_folder.mkdir()
    prepared = runner.run(PREPARE, PrepareRequest(plan.config, network_folder, plan.uses_plugins))
    plugins = prepared.plugins
    request = CompileRequest(
        plan.backend,
        network_folder / "model.onnx" if plugins is None else plugins.onnx,
        prepared.grid_samples,
        prepared.opt_shapes,
        prepared.profiles,
        () if plugins is None else plugins.ops,
        plan.target.compute_capabilities,
    )
    return prepared, request


def compile_request(request: CompileRequest, runner: Runner) -> CompiledNetwork:
    """Parse a model and build what is requested. Raises UnsupportedOperatorsError with all refused nodes."""
    return run_parser(runner, COMPILE, request, DiagnoseRequest(request.backend, request.onnx))


def describe_onnx(plan: Plan, folder: Path, runner: Runner) -> Json:
    """Prepare and parse without building; return steps, profiles and the network's record."""
    prepared, request = prepare_network(plan, folder, runner)
    return _result(prepared, compile_request(request, runner))


def compile_onnx(plan: Plan, folder: Path, engine: str, runner: Runner) -> Json:
    """Prepare, parse and build; return the same with the plan and metrics. engine: the plan's path in `folder`."""
    if plan.config.quantize is not None:
        check_quantization(plan.config, plan.target, plan.backend, runner)
    prepared, request = prepare_network(plan, folder, runner)
    request = replace(request, plan=plan_request(plan, folder / engine))
    return _result(prepared, compile_request(request, runner))


def plan_request(plan: Plan, path: Path) -> PlanRequest:
    """Return how a network of the build is built into `path`."""
    target, options = plan.target, plan.config.build
    return PlanRequest(path, target.name, target.compute_capabilities, **options.model_dump())


def compiled_fields(compiled: CompiledNetwork) -> Json:
    """Return the network's record, what built it and, if it was built, plan, warnings and metrics."""
    found: Json = {"network": compiled.network, "backend_version": compiled.backend_version}
    if (written := compiled.plan) is None:
        return found
    metrics = {"parse_s": compiled.parse_s, "describe_s": compiled.describe_s}
    metrics |= {"build_s": written.build_s, "peak_memory_mib": written.peak_memory_mib}
    plan = {"size_bytes": written.size_bytes, "sha256": written.sha256}
    return {**found, "metrics": metrics, "plan": plan, "warnings": list(written.warnings)}


def _result(prepared: PreparedModel, compiled: CompiledNetwork) -> Json:
    return {"steps": prepared.steps, "profiles": prepared.profiles, **compiled_fields(compiled)}
