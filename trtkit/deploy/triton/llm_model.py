"""A language model as a decoupled model of the Python backend, around batching in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.deploy.triton import model_config
from trtkit.deploy.triton.llm_fields import FIELDS, OUTPUTS
from trtkit.deploy.triton.model_config import Section
from trtkit.deploy.triton.served import ServedModel
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from trtkit.deploy.triton.options import DeployOptions
    from trtkit.engine.bundle import Bundle

RUNNER = "trtkit.deploy.triton.backend.llm:LlmModel"
_WITH_IMAGES = "image"


def llm_model(bundle: Bundle, name: str, options: DeployOptions) -> ServedModel:
    """Return the bundle as one model. Raises DeployError where an option makes no sense for it."""
    manifest = bundle.manifest
    if options.response_cache:
        what = "`response_cache`: answers of a language model come in pieces, which Triton does not cache"
        raise DeployError(what, "--set", "leave it out")
    llm = manifest.config.llm
    slots = options.llm.slots or (llm.max_batch_size if llm is not None else 1)
    fields = [field for field in FIELDS if field.name != _WITH_IMAGES or manifest.vision is not None]
    inputs = tuple(field.tensor for field in fields)
    settings = {**options.llm.model_dump(mode="json"), "warmup": options.warmup}
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
    return ServedModel(
        name, "llm", "python", inputs, OUTPUTS, sections, (f"{name}: {reason}",), bundle, None, RUNNER, settings
    )
