"""A language model as a decoupled model of the Python backend, around batching in flight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.deployment.triton import model_config
from trtkit.deployment.triton.llm_fields import FIELDS, OUTPUTS
from trtkit.deployment.triton.model_config import Section
from trtkit.deployment.triton.served import DeployedModel
from trtkit.errors import DeployError
from trtkit.llm.adapters import check_adapters
from trtkit.llm.head_tokens import head_tokens
from trtkit.runtime.weight_budget import weight_budget_bytes

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.deployment.triton.options import DeployOptions

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
"""What other models have, and what to do instead: requests wait for a slot in trtkit's own queue, not in Triton's."""
RUNNER = "trtkit.deployment.triton.backend.llm:LlmModel"
_WITH_IMAGES, _WITH_ADAPTERS = "image", "lora_name"


def llm_model(bundle: Bundle, name: str, options: DeployOptions) -> DeployedModel:
    """Return the bundle as one model. Raises DeployError where an option makes no sense for it."""
    manifest = bundle.manifest
    _check(options)
    serving = options.serving
    weight_budget_bytes(bundle, serving.weight_budget_gib)
    head_tokens(bundle, serving.speculate)
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
    """Raise DeployError where an option was set that a language model does not have."""
    queue = options.queue.model_fields_set if "queue" in options.model_fields_set else set()
    names = options.model_fields_set | {f"queue.{name}" for name in queue}
    for name, fix in _INSTEAD.items():
        if name in names:
            raise DeployError("does not apply to language models", f"--set {name}", fix)
