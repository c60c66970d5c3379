"""Verify a config or a bundle: prepare what is needed, run the job, keep the result."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trtkit import __version__
from trtkit.bundle.bundle import MANIFEST, QUANTIZED, write_json
from trtkit.bundle.manifest import VisionRecord
from trtkit.engine.decoder_build import makes_checkpoint, quantize_decoder
from trtkit.engine.hybrid_build import prepare_stages
from trtkit.engine.hybrids import stages_of_bundle
from trtkit.engine.jobs import DIGEST
from trtkit.engine.onnx_build import prepare_network
from trtkit.engine.plan import plan_build
from trtkit.engine.vision_language_build import describe_tower, vision_record
from trtkit.errors import SourceError, TrtkitError
from trtkit.jobs.events import Verdict
from trtkit.jobs.json_form import from_json, to_json
from trtkit.verification.jobs import (
    VERIFY,
    VERIFY_DECODER,
    VERIFY_HYBRID,
    VERIFY_VISION_LANGUAGE,
    DecoderToVerify,
    HybridToVerify,
    NetworkToVerify,
    Profiles,
    Request,
    VisionLanguageToVerify,
)

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.engine.plan import Plan
    from trtkit.jobs.events import Event
    from trtkit.jobs.job import Job
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]
Subject = TypeVar("Subject")
__all__ = ["Request", "run_job", "verify_bundle", "verify_config"]


def verify_config(config: ModelConfig, request: Request, runner: Runner) -> Json:
    """Make and verify the network of `config` without building it; return the report's data."""
    plan = plan_build(config, runner)
    asked = replace(request.resolved(), trust_source=True)
    if plan.takes_images or not plan.is_decoder:
        _refuse_text(request)
    with tempfile.TemporaryDirectory(prefix="trtkit-") as scratch:
        return {"name": config.name, **_verify_plan(plan, asked, Path(scratch), runner)}


def _verify_plan(plan: Plan, request: Request, folder: Path, runner: Runner) -> Json:
    """Prepare what a config's network is made from in an empty `folder`, and verify it."""
    config, backend = plan.config, plan.backend
    if plan.takes_images:
        record = vision_record(*describe_tower(plan, folder, runner))
        onnx, quantized = folder / "network/model.onnx", _quantized(config, folder, runner)
        vision = VisionRecord.model_validate(record)
        return run_job(
            VERIFY_VISION_LANGUAGE, VisionLanguageToVerify(config, backend, request, onnx, vision, quantized), runner
        )
    if plan.is_decoder:
        quantized = _quantized(config, folder, runner)
        return run_job(VERIFY_DECODER, DecoderToVerify(config, backend, request, quantized), runner)
    if plan.is_hybrid:
        _refuse_onnx_runtime(request)
        hybrid = prepare_stages(plan, folder, runner)
        profiles = from_json(Profiles, hybrid["profiles"])
        return run_job(
            VERIFY_HYBRID, HybridToVerify(config, backend, request, tuple(hybrid["stages"]), profiles), runner
        )
    prepared, parsed = prepare_network(plan, folder, runner)
    profiles = from_json(Profiles, to_json(prepared.profiles))
    return run_job(VERIFY, NetworkToVerify(config, backend, request, parsed.onnx, profiles), runner)


def _quantized(config: ModelConfig, folder: Path, runner: Runner) -> Path | None:
    """Quantize an LLM below `folder` if its config asks for that; return where."""
    if not makes_checkpoint(config):
        return None
    quantize_decoder(config, folder / QUANTIZED, runner)
    return folder / QUANTIZED


def verify_bundle(bundle: Bundle, request: Request, runner: Runner) -> Json:
    """Verify the network that a bundle's engine was built from, note the result in its manifest, return the data.

    Raises BundleError where a file is not the one that was built, an LLM's or a hybrid's weights among them.
    """
    bundle.check_files()
    manifest = bundle.manifest
    if manifest.decoder is not None or manifest.hybrid is not None:
        bundle.check_sources({file.sha256 for file in runner.run(DIGEST, manifest.config).files})
    if manifest.vision is not None or manifest.decoder is None:
        _refuse_text(request)
    report = {"name": manifest.name, **_verify_built(bundle, request.resolved(), runner)}
    write_json(bundle.path / MANIFEST, {**manifest.model_dump(mode="json"), "verify": _summary(report)})
    return report


def _verify_built(bundle: Bundle, request: Request, runner: Runner) -> Json:
    """Verify the network of a bundle by its kind."""
    manifest = bundle.manifest
    config, backend, profiles = manifest.config, manifest.backend.name, manifest.profiles
    if manifest.vision is not None:
        tower, quantized = (bundle.onnx_path, manifest.vision), bundle.quantized_path
        return run_job(
            VERIFY_VISION_LANGUAGE, VisionLanguageToVerify(config, backend, request, *tower, quantized), runner
        )
    if manifest.decoder is not None:
        return run_job(VERIFY_DECODER, DecoderToVerify(config, backend, request, bundle.quantized_path), runner)
    if manifest.hybrid is not None:
        _refuse_onnx_runtime(request)
        stages = tuple(stages_of_bundle(bundle))
        return run_job(VERIFY_HYBRID, HybridToVerify(config, backend, request, stages, profiles), runner)
    sources = tuple(file.sha256 for file in manifest.sources)
    network = NetworkToVerify(config, backend, request, bundle.onnx_path, profiles, bundle.engine_path(), sources)
    return run_job(VERIFY, network, runner)


def run_job(job: Job[Subject, Json], subject: Subject, runner: Runner) -> Json:
    """Run a job that verifies. Its verdict stands even if it then fails while it compares layers, as for memory."""
    verdict: Json = {}

    def take(event: Event) -> None:
        if isinstance(event, Verdict):
            verdict.update(event.report)
        else:
            runner.report(event)

    try:
        return replace(runner, report=take).run(job, subject)
    except TrtkitError as error:
        if not verdict:
            raise
        return {**verdict, "layers_problem": f"layers could not be compared: {error.what}"}


def _refuse_text(request: Request) -> None:
    if request.text is not None:
        raise SourceError("perplexity is a measure of language models only", "--text", "leave it out")


def _refuse_onnx_runtime(request: Request) -> None:
    """Raise SourceError where ONNX Runtime is asked to run a hybrid."""
    if request.against == "onnxruntime":
        fix = "leave it out, or verify with `--set route=onnx`"
        raise SourceError("a hybrid is no ONNX file", "--against onnxruntime", fix)


def _summary(found: Json) -> Json:
    """Return what a manifest keeps of a report: all but the layers."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    kept = {key: value for key, value in found.items() if key not in {"layers", "name"}}
    return {"verified_at": now, "trtkit": __version__, **kept}
