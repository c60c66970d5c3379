"""Verify a config or a bundle: prepare what is needed, run the job, keep the result."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit import __version__
from trtkit.bundle.bundle import MANIFEST, QUANTIZED, write_json
from trtkit.engine.decoder_build import makes_checkpoint, quantize_decoder
from trtkit.engine.hybrid_build import prepare_stages
from trtkit.engine.hybrids import stages_of_bundle
from trtkit.engine.jobs import DIGEST
from trtkit.engine.onnx_build import prepare_network
from trtkit.engine.plan import plan_build
from trtkit.engine.vision_language_build import describe_tower, vision_record
from trtkit.errors import SourceError, TrtkitError
from trtkit.jobs.events import Verdict
from trtkit.jobs.json_form import to_json
from trtkit.verification.jobs import VERIFY, VERIFY_DECODER, VERIFY_HYBRID, VERIFY_VISION_LANGUAGE

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.events import Event
    from trtkit.jobs.job import Job
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What to verify on.

    inputs: files or folders, the config's own when empty; for an LLM, text files with a prompt a line; for one that
        takes images, image files.
    against: "onnxruntime" or "torch". text: a file for an LLM's perplexity.
    trust_source: whether to run the factory that a bundle names; a config's always runs, since a config is code.
    """

    inputs: tuple[str, ...] = ()
    against: str | None = None
    layers: bool | None = None
    corners: bool = True
    text: str | None = None
    trust_source: bool = False

    def arguments(self) -> Json:
        """Return the job's arguments that say so."""
        inputs = [path if "://" in path else str(Path(path).resolve()) for path in self.inputs]
        asked = {"against": self.against, "layers": self.layers, "corners": self.corners}
        return {"inputs": inputs, "text": self.text and str(Path(self.text).resolve()), **asked}


def verify_config(config: ModelConfig, request: Request, runner: Runner) -> Json:
    """Make and verify the network of `config` without building it; return the report's data."""
    plan = plan_build(config, runner)
    arguments = {"config": config.model_dump(mode="json"), "backend": plan.backend, **request.arguments()}
    if plan.takes_images:
        _refuse_text(request)
        with tempfile.TemporaryDirectory(prefix="trtkit-") as folder:
            tower, opened = describe_tower(plan, Path(folder), runner)
            arguments |= {"onnx": str(Path(folder) / "network/model.onnx"), "vision": vision_record(tower, opened)}
            if makes_checkpoint(config):
                arguments["quantized"] = str(Path(folder) / QUANTIZED)
                quantize_decoder(config, Path(folder) / QUANTIZED, runner)
            return {"name": config.name, **run_job(VERIFY_VISION_LANGUAGE, arguments, runner)}
    if plan.is_decoder:
        return {"name": config.name, **_verify_decoder(config, arguments, runner)}
    _refuse_text(request)
    with tempfile.TemporaryDirectory(prefix="trtkit-") as folder:
        if plan.is_hybrid:
            _refuse_onnx_runtime(request)
            prepared = prepare_stages(plan, Path(folder), runner)
            arguments |= {"stages": prepared["stages"], "profiles": prepared["profiles"]}
            return {"name": config.name, **run_job(VERIFY_HYBRID, arguments, runner)}
        network, parsed = prepare_network(plan, Path(folder), runner)
        arguments |= {"onnx": str(parsed.onnx), "profiles": to_json(network.profiles)}
        return {"name": config.name, **run_job(VERIFY, arguments, runner)}


def _verify_decoder(config: ModelConfig, arguments: Json, runner: Runner) -> Json:
    """Verify an LLM's network, of the quantized model where its config asks for one."""
    with tempfile.TemporaryDirectory(prefix="trtkit-") as folder:
        if makes_checkpoint(config):
            arguments = {**arguments, "quantized": str(Path(folder) / QUANTIZED)}
            quantize_decoder(config, Path(folder) / QUANTIZED, runner)
        return run_job(VERIFY_DECODER, arguments, runner)


def verify_bundle(bundle: Bundle, request: Request, runner: Runner) -> Json:
    """Verify the network that a bundle's engine was built from, note the result in its manifest, return the data.

    Raises BundleError where a file is not the one that was built, an LLM's or a hybrid's weights among them.
    """
    bundle.check_files()
    manifest = bundle.manifest
    stored = manifest.model_dump(mode="json")
    arguments = {"config": stored["config"], "backend": manifest.backend.name, **request.arguments()}
    if manifest.decoder is not None or manifest.hybrid is not None:
        digests = runner.run(DIGEST, manifest.config).files
        bundle.check_sources({file.sha256 for file in digests})
        arguments["quantized"] = str(bundle.quantized_path or "")
    if manifest.vision is not None:
        _refuse_text(request)
        arguments |= {"onnx": str(bundle.onnx_path), "vision": stored["vision"]}
        found = {"name": manifest.name, **run_job(VERIFY_VISION_LANGUAGE, arguments, runner)}
    elif manifest.decoder is not None:
        found = {"name": manifest.name, **run_job(VERIFY_DECODER, arguments, runner)}
    elif manifest.hybrid is not None:
        _refuse_text(request)
        _refuse_onnx_runtime(request)
        arguments |= {"stages": stages_of_bundle(bundle), "profiles": stored["profiles"]}
        found = {"name": manifest.name, **run_job(VERIFY_HYBRID, arguments, runner)}
    else:
        _refuse_text(request)
        arguments |= {"onnx": str(bundle.onnx_path), "profiles": stored["profiles"]}
        arguments |= {"plan": str(bundle.engine_path()), "sources": [file.sha256 for file in manifest.sources]}
        arguments["trust_source"] = request.trust_source
        found = {"name": manifest.name, **run_job(VERIFY, arguments, runner)}
    write_json(bundle.path / MANIFEST, {**stored, "verify": _summary(found)})
    return found


def run_job(job: Job[Json, Json], arguments: Json, runner: Runner) -> Json:
    """Run a job that verifies. Its verdict stands even if it then fails while it compares layers, as for memory."""
    verdict: Json = {}

    def take(event: Event) -> None:
        if isinstance(event, Verdict):
            verdict.update(event.report)
        else:
            runner.report(event)

    try:
        return replace(runner, report=take).run(job, arguments)
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
