"""Build hybrids: export the ONNX parts, then write and compile every stage, each in a child process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.backends import BACKENDS
from trtkit.dtypes import dtype_of
from trtkit.engine.hybrids import open_hybrid
from trtkit.engine.jobs import COMPILE_STAGE, PREPARE_HYBRID, DiagnoseRequest, PrepareRequest, StageRequest
from trtkit.engine.onnx_build import compiled_fields, plan_request
from trtkit.engine.parsing import run_parser
from trtkit.engine.plan_file import Profiles
from trtkit.jobs.events import Step
from trtkit.jobs.json_form import from_json, to_json
from trtkit.models.hybrids.spec import OnnxPart
from trtkit.network.hybrid import input_name, port_dtype
from trtkit.network.record import join_records
from trtkit.network.targets import check_named_types
from trtkit.quantization_methods import METHODS
from trtkit.sources.digest import sha256_of

if TYPE_CHECKING:
    from trtkit.engine.hybrids import OpenedHybrid
    from trtkit.engine.jobs import CompiledStage
    from trtkit.engine.plan import Plan
    from trtkit.engine.plan_file import PlanRequest
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


def describe_hybrid(plan: Plan, folder: Path, runner: Runner) -> Json:
    """Write every stage without building it; return steps, profiles, the joint record and what the parts are."""
    prepared = prepare_stages(plan, folder, runner)
    described = [_run_stage(plan, stage, None, runner) for stage in prepared["stages"]]
    return _result(plan, folder, prepared, described)


def compile_hybrid(plan: Plan, folder: Path, _engine: str, runner: Runner) -> Json:
    """Write every stage and build it; return the same with plans and metrics."""
    _check_target(plan)
    prepared = prepare_stages(plan, folder, runner)
    paths = [f"engines/{stage['name']}.plan" for stage in prepared["stages"]]
    pairs = zip(prepared["stages"], paths, strict=True)
    done = [_run_stage(plan, stage, plan_request(plan, folder / path), runner) for stage, path in pairs]
    compiled = [compiled_fields(stage.compiled) for stage in done]
    metrics: Json = {"peak_memory_mib": max(item["metrics"]["peak_memory_mib"] for item in compiled)}
    for key in ("parse_s", "describe_s", "build_s"):
        metrics[key] = round(sum(item["metrics"][key] for item in compiled), 3)
    engines = [{"path": path, **item["plan"]} for path, item in zip(paths, compiled, strict=True)]
    warnings = list(dict.fromkeys(line for item in compiled for line in item["warnings"]))
    return {**_result(plan, folder, prepared, done), "engines": engines, "metrics": metrics, "warnings": warnings}


def _check_target(plan: Plan) -> None:
    """Refuse types that the target cannot compute in, before any work. Raises ConfigError."""
    asked = open_hybrid(plan.config).quantization
    if asked is not None:
        names, target = {METHODS[method].dtype.name for method in asked.methods}, plan.target
        check_named_types(names, target.name, target.compute_capabilities, BACKENDS[plan.backend].features)


def prepare_stages(plan: Plan, folder: Path, runner: Runner) -> Json:
    """Export the ONNX parts into `folder`/network; return what `prepare_hybrid` says."""
    return runner.run(PREPARE_HYBRID, PrepareRequest(plan.config, folder, plan.uses_plugins))


def _run_stage(plan: Plan, stage: Json, build: PlanRequest | None, runner: Runner) -> CompiledStage:
    """Run the job of one stage; where TensorRT refuses its ONNX, all faults are asked for."""
    request = StageRequest(plan.backend, plan.config, stage, plan.target, build)
    if not stage["onnx"]:
        return runner.run(COMPILE_STAGE, request)
    return run_parser(runner, COMPILE_STAGE, request, DiagnoseRequest(plan.backend, Path(stage["onnx"])))


def _result(plan: Plan, folder: Path, prepared: Json, stages: list[CompiledStage]) -> Json:
    """Return what the manifest and `inspect` show."""
    opened = open_hybrid(plan.config)
    names = [spec.name for spec in opened.inputs]
    return {
        "steps": from_json(tuple[Step, ...], prepared["steps"]),
        "profiles": from_json(Profiles, prepared["profiles"]),
        "network": join_records([stage.compiled.network for stage in stages], names, opened.output_names),
        "backend_version": stages[0].compiled.backend_version,
        "hybrid": _hybrid(plan, folder, opened, prepared, stages),
    }


def _hybrid(plan: Plan, folder: Path, opened: OpenedHybrid, prepared: Json, stages: list[CompiledStage]) -> Json:
    """Return parts, seams and stages as the manifest keeps them."""
    spec, dtype = opened.spec, dtype_of(opened.precision)
    layers = {name: count for stage in stages for name, count in stage.part_layers.items()}
    parts = [
        {
            "name": part.name,
            "kind": "onnx" if isinstance(part, OnnxPart) else "network",
            "inputs": [_port(port, port_dtype(port, part, dtype)) for port in part.inputs],
            "outputs": [_port(port, port_dtype(port, part, dtype)) for port in part.outputs],
            "feeds": {port.name: input_name(spec, part.name, port.name) for port in part.inputs},
            "layers": layers.get(part.name, 0),
        }
        for part in spec.parts
    ]
    return {
        "model_type": spec.model_type,
        "compose": plan.config.compose,
        "parts": parts,
        "outputs": list(spec.outputs),
        "stages": [_stage(folder, *pair) for pair in zip(prepared["stages"], stages, strict=True)],
    }


def _port(port: Any, dtype: Any) -> Json:
    return {"name": port.name, "dtype": dtype.name, "shape": list(port.shape)}


def _stage(folder: Path, stage: Json, done: CompiledStage) -> Json:
    """Return one stage as the manifest keeps it; paths relative to the bundle."""
    network = done.compiled.network
    onnx = [path for path in (stage["onnx"], (stage.get("plugins") or {}).get("onnx")) if path]
    files = [Path(f"{path}{ending}") for path in onnx for ending in ("", ".data")]
    return {
        "name": stage["name"],
        "parts": stage["parts"],
        "engine": None if done.compiled.plan is None else f"engines/{stage['name']}.plan",
        "files": [
            {"path": str(path.relative_to(folder)), "size_bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in files
            if path.exists()
        ],
        "grid_samples": stage["grid_samples"],
        "inputs": to_json(network.inputs),
        "outputs": to_json(network.outputs),
        "profiles": stage["profiles"],
        "layers": len(network.layers),
    }
