"""Deployment of a bundle to a model repository of Triton Inference Server."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trtkit.deployment.make_known import ensure_known
from trtkit.deployment.triton import model_config
from trtkit.deployment.triton.elsewhere import check_models
from trtkit.deployment.triton.llm_fields import FIELDS, OUTPUTS
from trtkit.deployment.triton.model_config import Section
from trtkit.deployment.triton.pipelines import image_answer, ocr_pipeline, page_answer, takes_images, vision_pipeline
from trtkit.deployment.triton.repository import differences, place_models, reads_source, refuse_links, write, writing
from trtkit.deployment.triton.served import DeployedModel, check_name
from trtkit.deployment.triton.tensor_model import network_models
from trtkit.errors import DeployError
from trtkit.llm.adapters import check_adapters
from trtkit.llm.speculator_tokens import speculator_tokens
from trtkit.runtime.weight_budget import weight_budget_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.bundle.bundle import Bundle
    from trtkit.deployment.make_known import ImageAnswer
    from trtkit.deployment.triton.options import DeployOptions
    from trtkit.deployment.triton.repository import PlacedModel


Form = Literal["auto", "tensors", "pipeline"]


@dataclass(frozen=True)
class DeployRequest:
    """What to serve. name: if empty, the bundle's own. recognizer: reads the lines that the bundle detects.

    release: Triton release that must be able to load it; any if empty.
    """

    bundle: Bundle
    name: str = ""
    form: Form = "auto"
    recognizer: Bundle | None = None
    release: str = ""

    @property
    def bundles(self) -> list[Bundle]:
        """The bundles that the deployment serves."""
        return [self.bundle] if self.recognizer is None else [self.bundle, self.recognizer]


@dataclass(frozen=True)
class Deployment:
    """A deployment, written or, in a dry run, planned. notes: remarks for the user, in sentences."""

    placements: tuple[PlacedModel, ...]
    notes: tuple[str, ...]

    @property
    def differences(self) -> str:
        """Changes to the repository, as a diff."""
        return differences(self.placements)

    def to_json(self) -> dict[str, Any]:
        """Return the deployment as JSON data."""
        models = [
            {
                "name": placed.model.name,
                "version": placed.version,
                "serves": list(placed.served),
                "kind": placed.model.kind,
                "backend": placed.model.backend,
                "reasons": list(placed.model.reasons),
            }
            for placed in self.placements
        ]
        return {"models": models, "notes": list(self.notes)}


def deploy(
    request: DeployRequest,
    repository: Path,
    options: DeployOptions,
    on_progress: Callable[[str], None],
    *,
    is_dry_run: bool,
) -> Deployment:
    """Write the models into `repository`, or in a dry run only return what would be written.

    Raises BundleError if a file of a bundle is not the one that was built, DeployError if the bundle cannot be served.
    """
    on_progress("checking the bundle")
    notes = [note for bundle in request.bundles for note in _checked(bundle)]
    models = served_models(request, options)
    if request.release:
        check_models(models, request.release)
    if is_dry_run:
        return Deployment(tuple(place_models(models, repository, options.keep_versions)), tuple(notes))
    with writing(repository):
        placements = place_models(models, repository, options.keep_versions)
        notes.append(ensure_known(request.bundle, _answer(request, models[-1], options), on_progress))
        if request.recognizer is not None:
            ensure_known(request.recognizer, None, on_progress)
        write(placements, repository, on_progress)
    return Deployment(tuple(placements), tuple(notes))


def served_models(request: DeployRequest, options: DeployOptions) -> list[DeployedModel]:
    """Return the models that serve the bundle, dependencies first; clients call the last one."""
    bundle, form = request.bundle, request.form
    if "llm" in options.model_fields_set and bundle.manifest.interface != "tokens":
        raise DeployError("the bundle does not hold a language model", "--set llm", "leave it out")
    name = check_name(request.name or bundle.manifest.name)
    if request.recognizer is not None:
        if form == "tensors":
            raise DeployError("`--recognizer` needs image inputs", "--as", "remove one of them")
        return ocr_pipeline(bundle, request.recognizer, name, options)
    if (encoder := bundle.manifest.encoder) is not None:
        fix = "use `trtkit generate` or `trtkit.LLM`"
        raise DeployError(f"{encoder.kind} cannot be served: requests carry nothing to its encoder", name, fix)
    if bundle.manifest.interface == "tokens":
        return [llm_model(bundle, name, options)]
    if form == "pipeline" and not takes_images(bundle):
        what = "the config does not define image preprocessing"
        raise DeployError(what, bundle.manifest.name, "add `preprocess:` and build again, or deploy it `--as tensors`")
    if form == "tensors" or not takes_images(bundle):
        return network_models(bundle, name, options)
    return vision_pipeline(bundle, name, options)


def _checked(bundle: Bundle) -> list[str]:
    """Return remarks on the bundle. Raises if its files are not those that were built, or if it failed verification."""
    refuse_links(bundle.path.resolve())
    bundle.check_files()
    manifest, notes = bundle.manifest, []
    verification = manifest.verify
    if verification is None:
        notes.append(f"the bundle was not verified: `trtkit verify {shlex.quote(str(bundle.path))}`")
    elif not verification.passed:
        what = f"the bundle did not pass verification: {verification.verdict}"
        raise DeployError(what, str(bundle.path), "see `trtkit verify --fix`, then verify again")
    elif verification.batch_rows == "mixed":
        notes.append("requests never share a batch: the network's rows depend on each other")
    if reads_source(manifest) and manifest.backend.name != "tensorrt":
        source = manifest.config.source
        folder = source.hf or source.gguf or source.trtllm
        notes.append(f"a server here reads the weights from {folder}, which the deployed manifest names")
    return notes


def _answer(request: DeployRequest, served: DeployedModel, options: DeployOptions) -> ImageAnswer | None:
    """Return a pipeline's answer to an image, None if it is not a pipeline."""
    if request.recognizer is not None:
        return page_answer(request.bundle, request.recognizer)
    return image_answer(request.bundle, served, options) if served.kind == "pipeline" else None


_INSTEAD = {
    "queue.max_size": "set `llm.max_queue`",
    "queue.delay_us": "leave it out: requests join the batch under way at once",
    "queue.timeout_us": "let clients end requests that take too long",
    "queue.on_timeout": "leave it out",
    "max_batch_size": "set `llm.slots`",
    "cuda_graphs": "leave it out: an engine's decode steps are captured anyway",
    "top_k": "leave it out: clients send `top_k` with a request",
    "response_cache": "leave it out: answers come in pieces, which Triton does not cache",
}
"""Options of other models and their alternatives: requests wait in trtkit's own queue for slots, not in Triton's."""
RUNNER = "trtkit.deployment.triton.backend.llm:LlmModel"
_WITH_IMAGES, _WITH_ADAPTERS = "image", "lora_name"


def llm_model(bundle: Bundle, name: str, options: DeployOptions) -> DeployedModel:
    """Return the bundle as one model. Raises DeployError for options that do not apply to it."""
    manifest = bundle.manifest
    _check(options)
    serving = options.serving
    weight_budget_bytes(bundle, serving.weight_budget_gib)
    speculator_tokens(bundle, serving.speculate)
    llm = manifest.config.llm
    slots = serving.slots or (llm.max_batch_size if llm is not None else 1)
    adapters = serving.lora or {}
    check_adapters(bundle, adapters, name)
    lacking = {_WITH_IMAGES} if manifest.images is None else set()
    lacking |= {_WITH_ADAPTERS} if llm is None or llm.lora is None else set()
    fields = [field for field in FIELDS if field.name not in lacking]
    inputs = tuple(field.tensor for field in fields)
    folders = {name: str(Path(folder).resolve()) for name, folder in adapters.items()}
    model_settings = {"default_max_tokens": options.default_max_tokens, "warmup": options.warmup}
    settings = {"serving": replace(serving, lora=folders).to_values(), **model_settings}
    decoupled = "Answers come in pieces while the model goes on, and requests leave when their client does."
    rows = f"Prompts of one request: as many as the engine has slots, {slots}."
    reason = f"trtkit's batching in flight, {slots} slots, as a decoupled model of the Python backend"
    sections = (
        Section(f"{reason}.", {"name": name, "backend": "python"}),
        Section(decoupled, {"model_transaction_policy": {"decoupled": True}}),
        Section(rows, {"max_batch_size": slots}),
        model_config.interface(inputs, OUTPUTS, "Names and shapes of TensorRT-LLM's models; every input is optional."),
        model_config.instances(options, "KIND_AUTO", is_shared=True),
    )
    return DeployedModel(
        name, "llm", "python", inputs, OUTPUTS, sections, (f"{name}: {reason}",), bundle, None, RUNNER, settings
    )


def _check(options: DeployOptions) -> None:
    """Raise DeployError if an option is set that a language model does not have."""
    queue = options.queue.model_fields_set if "queue" in options.model_fields_set else set()
    names = options.model_fields_set | {f"queue.{name}" for name in queue}
    for name, fix in _INSTEAD.items():
        if name in names:
            raise DeployError("does not apply to language models", f"--set {name}", fix)
