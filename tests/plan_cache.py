"""Plans that TensorRT built for equal networks, kept for one run of the tests: all its processes share them.

Bundles of one network are built again and again by tests whose subject is something else. The key is a digest of every
layer, tensor and weight that TensorRT was given, the profiles, the options and TensorRT's version, so what is kept is
what TensorRT would build again. Builds in child processes and those that list kernels are left alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.builder import plan_file
from trtkit.builder.stages import BuiltPlan
from trtkit.errors import ExecutionError
from trtkit.files import replace_file
from trtkit.jobs.events import Phase
from trtkit.jobs.json_form import from_json, to_json
from trtkit.network.layer_graph import read_layers

if TYPE_CHECKING:
    from trtkit.backends import Backend
    from trtkit.builder.plan_file import PlanBuildRequest
    from trtkit.builder.stages import WrittenNetwork
    from trtkit.jobs.events import Listener

_MOST_BYTES = 64 * 2**20
"""Networks with more weights are built only once, and are large files."""


def digest_of(backend: Backend, network: WrittenNetwork, request: PlanBuildRequest) -> str | None:
    """Return a SHA-256 of what a plan follows from; None for weights that TensorRT does not hand out."""
    try:
        layers = read_layers(backend, network.definition, network.constants)
    except ExecutionError:
        return None
    digest = hashlib.sha256(f"{layers.library} {request.profiles} {request.options}".encode())
    for spec in layers.specs[1:]:
        if spec is not None:
            digest.update(f"{spec.name} {spec.dtype.name} {spec.is_shape} {spec.shape}".encode())
    for node in layers.nodes:
        attributes = sorted(node.attributes.items())
        digest.update(f"{node.kind} {node.name} {node.inputs} {node.outputs} {attributes} {node.construct}".encode())
        for name, weights in sorted(node.weights.items()):
            digest.update(f"{name} {weights.dtype.name} {weights.count}".encode())
            digest.update(weights.raw.tobytes())
    digest.update(f"{layers.inputs} {layers.outputs}".encode())
    return digest.hexdigest()


def _write_plan(
    folder: Path,
    backend: Backend,
    network: WrittenNetwork,
    weight_bytes: int,
    request: PlanBuildRequest,
    report: Listener,
) -> BuiltPlan:
    """Copy a kept plan, or let TensorRT build it and keep it. Otherwise like `plan_file.write_plan`."""
    is_kept = weight_bytes < _MOST_BYTES and not request.is_detailed
    name = digest_of(backend, network, request) if is_kept else None
    if name is None:
        return plan_file.write_plan(backend, network, weight_bytes, request, report)
    kept, record = folder / f"{name}.plan", folder / f"{name}.json"
    if record.exists():
        report(Phase("build"))
        shutil.copyfile(kept, request.plan)
        return from_json(BuiltPlan, json.loads(record.read_text()))
    built = plan_file.write_plan(backend, network, weight_bytes, request, report)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(kept, request.plan.read_bytes())
    replace_file(record, json.dumps(to_json(built)).encode())
    return built


def writer_of_plans(folder: Path) -> partial[BuiltPlan]:
    """Return what stands for `stage_job.write_plan` in the tests. folder: of the plans that are kept."""
    return partial(_write_plan, folder)
