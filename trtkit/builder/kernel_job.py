"""The job that builds a stage once more, in detail, to learn which kernels its layers became."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.backends import load_backend
from trtkit.builder.plan_file import PlanBuildRequest, write_plan
from trtkit.builder.stage_job import stage_writer
from trtkit.builder.stages import StageKernels
from trtkit.network.describe import describe
from trtkit.network.kernels import kernels_of, tag_layers

if TYPE_CHECKING:
    from trtkit.builder.stages import StageRequest
    from trtkit.jobs.job import JobContext


def list_kernels(request: StageRequest, context: JobContext) -> StageKernels:
    """Write and build a stage; return its network at the `opt` shapes of each profile, and the kernels of its plan."""
    assert request.plan is not None
    backend = load_backend(request.backend)
    network = stage_writer(request)(request, backend, replace(context, severity="VERBOSE"))
    opts = [{name: shapes.opt for name, shapes in profile.items()} for profile in network.profiles]
    records = tuple(describe(backend, network.definition, shapes) for shapes in opts or [dict(network.opt_shapes)])
    tag_layers(network.definition)
    plan_request = PlanBuildRequest(network.profiles, request.options, request.plan, context.log, is_detailed=True)
    write_plan(backend, network, sum(records[0].totals().weight_bytes.values()), plan_request, context.report)
    return StageKernels(records, kernels_of(context.log.read_text(errors="replace")))
