"""Verification of a config or a bundle: prepare the model, run the job, store the result."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trtkit.builder.active_neurons import with_measured_blocks
from trtkit.builder.build_inputs import gather_model_inputs
from trtkit.builder.encoder import OpenedEncoder
from trtkit.builder.jobs import DIGEST
from trtkit.builder.stages import bundle_stages, plan_files
from trtkit.builder.vision_language import OpenedVision
from trtkit.builder.write_stages import prepare_stages
from trtkit.bundle.bundle import write_json
from trtkit.bundle.records import VerificationRecord
from trtkit.errors import SourceError, TrtkitError
from trtkit.files import MANIFEST, QUANTIZED, scratch_folder
from trtkit.inputs.samples import check_files
from trtkit.jobs.events import Verdict
from trtkit.resolve import resolve
from trtkit.sources import package_file
from trtkit.verification.jobs import (
    COMPARE_NETWORKS,
    VERIFY_ARRAYS,
    VERIFY_TOKENS,
    NetworksRequest,
    VerifyRequest,
    VerifySettings,
)
from trtkit.verification.report import Report
from trtkit.verification.verdict import verdict as verdict_of
from trtkit.version import __version__

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.events import Event
    from trtkit.jobs.runner import Runner
    from trtkit.models.model import StagedModel

__all__ = ["VerifySettings", "run_job", "verify_bundle", "verify_config"]


def verify_config(config: ModelConfig, request: VerifySettings, runner: Runner) -> Report:
    """Write and verify the network of `config` without building it."""
    model = resolve(with_measured_blocks(config, runner))
    _check(request, model)
    inputs = gather_model_inputs(model, runner)
    with scratch_folder() as folder:
        prepared = prepare_stages(inputs, folder, runner)
        job_request = VerifyRequest(
            config=inputs.config,
            backend=inputs.backend,
            request=request.resolved(),
            stages=prepared.stages,
            profiles=prepared.profiles,
            quantized=folder / QUANTIZED if (folder / QUANTIZED).exists() else None,
            traits=model.images,
            images=inputs.tower.images if isinstance(inputs.tower, OpenedVision) else None,
            encoder=inputs.tower.encoder if isinstance(inputs.tower, OpenedEncoder) else None,
            labels=inputs.labels,
        )
        return run_job(job_request, runner)


def verify_bundle(bundle: Bundle, request: VerifySettings, runner: Runner) -> Report:
    """Verify the network that a bundle's engine was built from, and record the result in its manifest.

    Raises BundleError if a file is not the one that was built, including an LLM's or a hybrid's weights.
    """
    bundle.check_files()
    manifest, stages = bundle.manifest, bundle_stages(bundle)
    model = resolve(manifest.config)
    _check(request, model)
    if any(stage.writer != "parser" for stage in stages):
        bundle.check_sources({file.sha256 for file in runner.run(DIGEST, manifest.config).files})
    job_request = VerifyRequest(
        config=model.config if model.interface == "tokens" else manifest.config,
        backend=manifest.backend.name,
        request=request.resolved(),
        stages=stages,
        profiles=manifest.profiles,
        quantized=bundle.quantized_path,
        images=manifest.images,
        traits=model.images,
        encoder=manifest.encoder,
        engines=plan_files(bundle),
        digests=tuple(file.sha256 for file in manifest.sources),
        labels=manifest.labels,
        bundle=bundle.path,
    )
    report = run_job(job_request, runner)
    if not report.networks:  # the process died after its verdict
        report = report.with_networks(runner.run(COMPARE_NETWORKS, NetworksRequest(bundle.path)).networks)
    write_json(bundle.path / MANIFEST, manifest.model_copy(update={"verify": _record(report)}).model_dump(mode="json"))
    return report


def run_job(request: VerifyRequest, runner: Runner) -> Report:
    """Run a verification job. If it then fails while comparing layers, such as for lack of memory, its verdict stands.

    The same holds if it fails while comparing networks.
    """
    verdict: Report | None = None

    def take(event: Event) -> None:
        nonlocal verdict
        if isinstance(event, Verdict) and isinstance(event.report, Report):
            verdict = event.report
        else:
            runner.report(event)

    is_language_model = any(stage.writer == "decoder" for stage in request.stages)
    job = VERIFY_TOKENS if is_language_model else VERIFY_ARRAYS
    try:
        return replace(runner, report=take).run(job, request)
    except TrtkitError as error:
        if verdict is None:
            raise
        if verdict.layers or not request.request.wants_layers(passed=verdict.passed):
            return verdict
        return replace(verdict, layers_problem=f"layers could not be compared: {error.what}")


def _check(request: VerifySettings, model: StagedModel) -> None:
    """Refuse requests that do not apply to the model, and inputs that cannot be read. Raises SourceError."""
    if request.text is not None and (model.interface == "arrays" or model.takes_images or model.has_encoder):
        raise SourceError("perplexity applies to language models only", "--text", "leave it out")
    if request.against == "onnxruntime" and model.spec is not None:
        fix = "leave it out, or verify with `--set route=onnx`"
        raise SourceError("a hybrid is not an ONNX file", "--against onnxruntime", fix)
    if model.interface == "arrays":
        check_files(request.inputs or model.config.verify.inputs, model.config)
    else:
        for path in request.inputs:
            package_file.resolve(path)


def _record(report: Report) -> VerificationRecord:
    """Return the part of a report that a manifest keeps: everything except the layers."""
    data = {key: value for key, value in report.to_json().items() if key not in {"layers", "name"}}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return VerificationRecord(verified_at=now, trtkit=__version__, verdict=verdict_of(report), **data)
