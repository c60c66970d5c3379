"""Put a bundle into a model repository of Triton Inference Server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trtkit.deploy.make_known import ensure_known
from trtkit.deploy.triton.llm_model import llm_model
from trtkit.deploy.triton.repository import differences, place, write
from trtkit.deploy.triton.served import check_name
from trtkit.deploy.triton.tensor_model import tensor_model
from trtkit.deploy.triton.vision_pipeline import answer_settings, takes_images, vision_pipeline
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.deploy.triton.options import DeployOptions
    from trtkit.deploy.triton.repository import Placement
    from trtkit.deploy.triton.served import ServedModel
    from trtkit.engine.bundle import Bundle

Form = Literal["auto", "tensors", "pipeline"]


@dataclass(frozen=True)
class Deployment:
    """What was, or with a dry run would be, deployed. notes: what a person should know, in sentences."""

    placements: tuple[Placement, ...]
    notes: tuple[str, ...]

    @property
    def differences(self) -> str:
        """What changes in the repository, as a diff."""
        return differences(self.placements)

    def to_json(self) -> dict[str, Any]:
        """Return it for a program."""
        models = [
            {
                "name": each.model.name,
                "version": each.version,
                "serves": list(each.served),
                "kind": each.model.kind,
                "backend": each.model.backend,
                "reasons": list(each.model.reasons),
            }
            for each in self.placements
        ]
        return {"models": models, "notes": list(self.notes)}


def deploy(  # noqa: PLR0913
    bundle: Bundle,
    repository: Path,
    options: DeployOptions,
    on_progress: Callable[[str], None],
    *,
    name: str = "",
    form: Form = "auto",
    is_dry_run: bool = False,
) -> Deployment:
    """Write the bundle's models into `repository`, or only say what would be written.

    Raises BundleError where a file of the bundle is not the one that was built, DeployError where it cannot be served.
    """
    on_progress("checking the bundle")
    bundle.check_files()
    notes = _verified(bundle)
    models = served_models(bundle, check_name(name or bundle.manifest.name), options, form)
    placements = place(models, repository, options.keep_versions)
    if not is_dry_run:
        notes.append(ensure_known(bundle, _answers(bundle, models, options), on_progress))
        write(placements, repository, on_progress)
    return Deployment(tuple(placements), tuple(notes))


def served_models(bundle: Bundle, name: str, options: DeployOptions, form: Form) -> list[ServedModel]:
    """Return the models that serve the bundle, those that others use first."""
    if bundle.manifest.decoder is not None:
        return [llm_model(bundle, name, options)]
    if form == "pipeline" and not takes_images(bundle):
        what = "the config does not say how an image becomes the input"
        raise DeployError(what, bundle.manifest.name, "add `preprocess:` and build again, or deploy it `--as tensors`")
    if form == "tensors" or not takes_images(bundle):
        return [tensor_model(bundle, name, options)]
    return vision_pipeline(bundle, name, options)


def _verified(bundle: Bundle) -> list[str]:
    """Return a note where the bundle was not verified. Raises DeployError where it was found wrong."""
    found = bundle.manifest.verify
    if found is None:
        return [f"the bundle was not verified: `trtkit verify {bundle.path}`"]
    if not found.get("passed"):
        what = "the bundle was verified and is out of tolerance"
        raise DeployError(what, str(bundle.path), "see `trtkit verify --fix`, and verify it again")
    return []


def _answers(bundle: Bundle, models: list[ServedModel], options: DeployOptions) -> dict[str, Any] | None:
    """Return how a pipeline reads outputs: {} where it gives the network's own, None where it is no pipeline."""
    if models[-1].kind != "ensemble":
        return None
    task = bundle.manifest.config.task
    return {} if task is None else answer_settings(bundle, task, options.top_k)
