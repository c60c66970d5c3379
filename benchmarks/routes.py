"""Hybrids by both routes, entirely through ONNX or with the network API: layers, build time, errors.

Models are from `benchmarks.route_models`. Builds of the routes are interleaved; times are medians, with ratios to ONNX
alone in the same run. Errors are the reference executor's on the network that TensorRT-RTX builds, against
transformers in fp32.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import RESULTS, interleaved, ratio, summary, write, write_between
from benchmarks.route_models import MODELS, save_model
from trtkit.builder.build import build_bundle
from trtkit.config.schema import ModelConfig
from trtkit.jobs.runner import ChildRunner
from trtkit.verification.verify import VerifySettings, verify_bundle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.bundle.bundle import Bundle

ROUTES = {"onnx": {"route": "onnx"}, "fused": {"compose": "fused"}, "chained": {"compose": "chained"}}
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "hybrids.md"
PATH = RESULTS / "routes.json"
REPEATS = 3


def main(names: Sequence[str] = ()) -> None:
    """Measure the named models, or all, and tiny ones by every route; write the results, keeping earlier ones."""
    results: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))["routes"] if names else {}
    with tempfile.TemporaryDirectory(prefix="trtkit-routes-") as scratch:
        for name in names or MODELS:
            save_model(name, Path(scratch) / name)
            routes = list(ROUTES) if name.endswith("tiny") else ["onnx", "fused"]
            for precision in results.get(name, ("fp32", "fp16")):
                results.setdefault(name, {})[precision] = figures(Path(scratch) / name, routes, precision)
                print(name, precision, json.dumps(results[name][precision]), flush=True)
            write("routes", {"repeats": REPEATS, "note": _NOTE, "routes": results})
    write_docs(results)


_NOTE = "a shared machine: compare times of one model and type only; medians of interleaved builds, batches of one"


def figures(folder: Path, routes: list[str], precision: str) -> dict[str, Any]:
    """Build the model in a folder by every route in turn, then verify each once."""
    configs = {route: _config(folder, route, precision) for route in routes}
    outs = {route: folder.with_name(f"{folder.name}-{precision}-{route}") for route in routes}

    def build(route: str) -> Bundle:
        return build_bundle(configs[route], outs[route], ChildRunner(), use_cache=False).bundle

    built = interleaved({route: partial(build, route) for route in routes}, REPEATS, warmups=0)
    times = {route: [_times(bundle) for bundle in bundles] for route, bundles in built.items()}
    return {
        route: {**_times_beside(times[route], times["onnx"]), **_sizes(built[route][-1]), **_errors(built[route][-1])}
        for route in routes
    }


def _config(folder: Path, route: str, precision: str) -> ModelConfig:
    """Return the config to build, for batches of one."""
    fields = {
        "name": folder.name,
        "source": {"hf": str(folder)},
        "image_size": MODELS[folder.name][3],
        "precision": precision,
        "profiles": [{"batch": 1}],
        "verify": {"pair_rows": folder.name.startswith("rt-detr")},
        **ROUTES[route],
    }
    return ModelConfig.model_validate(fields)


def _times(bundle: Bundle) -> dict[str, float]:
    """Return the seconds of preparing the ONNX file, and of writing and building the network."""
    metrics = bundle.manifest.metrics
    return {"prepare_s": metrics.prepare_s, "build_s": metrics.parse_s + metrics.describe_s + metrics.build_s}


def _times_beside(times: list[dict[str, float]], onnx: list[dict[str, float]]) -> dict[str, Any]:
    """Return each time's spread, and the ratio of its median to that of ONNX alone."""
    found: dict[str, Any] = {}
    for key in ("prepare_s", "build_s"):
        own, other = [item[key] for item in times], [item[key] for item in onnx]
        found[key], found[f"{key.removesuffix('_s')}_beside_onnx"] = summary(own), ratio(own, other)
    return found


def _sizes(bundle: Bundle) -> dict[str, Any]:
    """Return the numbers of layers and the sizes of the network and its engines."""
    totals = bundle.manifest.totals
    return {
        "layers": totals.layers,
        "attention_layers": totals.layers_by_type.get("ATTENTION_INPUT", 0),
        "engine_mib": round(sum(engine.size_bytes for engine in bundle.manifest.engines) / 2**20, 1),
        "peak_memory_mib": bundle.manifest.metrics.peak_memory_mib,
    }


def _errors(bundle: Bundle) -> dict[str, Any]:
    """Return the errors of outputs and parts against transformers."""
    report = verify_bundle(bundle, VerifySettings(corners=False), ChildRunner())
    return {
        "relative_rms_error": {key: output.relative_rms_error for key, output in report.outputs.items()},
        "cosine": {key: output.cosine for key, output in report.outputs.items()},
        "unpaired_rows": None if report.rows is None else report.rows.unpaired,
        "parts": {part.name: part.relative_rms_error for part in report.parts},
        "passed": report.passed,
    }


def table(results: dict[str, Any]) -> str:
    """Return the rows of the table in docs/hybrids.md."""
    titles = ("layers", "attention layers", "engine, MiB", "prepare", "write and build", "error")
    head = f"| model | type | route | {' | '.join(titles)} |"
    rows = [head, "| --- | --- | --- | --: | --: | --: | --: | --: | --- |"]
    for name, precisions in results.items():
        for precision, routes in precisions.items():
            for route, found in routes.items():
                numbers = [str(found[key]) for key in ("layers", "attention_layers", "engine_mib")]
                times = [_time(found, key) for key in ("prepare", "build")]
                rows.append(f"| {' | '.join([name, precision, route, *numbers, *times, _errors_text(found)])} |")
    return "\n".join(rows) + "\n"


def _time(found: dict[str, Any], key: str) -> str:
    return f"{found[f'{key}_s']['median']:.1f} s, {found[f'{key}_beside_onnx']:.2f}x"


def _errors_text(found: dict[str, Any]) -> str:
    """Return each output's error, the share of unpaired rows, and whether all are within tolerance, as text."""
    errors = found["relative_rms_error"].items()
    said = [f"{name} {'not finite' if error is None else f'{error:.1e}'}" for name, error in errors]
    if found["unpaired_rows"]:
        said.append(f"{found['unpaired_rows']:.1%} of rows unpaired")
    return ", ".join([*said, *([] if found["passed"] else ["out of tolerance"])])


def write_docs(results: dict[str, Any]) -> None:
    """Write the table between its marks in docs/hybrids.md."""
    write_between(DOCS, "routes", table(results))


if __name__ == "__main__":
    main(sys.argv[1:])
