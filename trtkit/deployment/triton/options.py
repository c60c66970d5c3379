"""What `trtkit deploy --set` may change: how a model is scheduled and what the server does around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError, model_validator

from trtkit.config.explain import explain
from trtkit.config.overrides import read_overrides
from trtkit.config.strict import StrictModel
from trtkit.errors import ConfigError
from trtkit.runtime.scheduling import ScheduleName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.config.overrides import Override
    from trtkit.config.yaml_file import KeyPath


class QueueOptions(StrictModel):
    """The queue in front of a model; language models use `llm.max_queue` instead. Times are in microseconds.

    on_timeout: reject the request, or serve it after the others. Limits have a cost in Triton 2.51: see
    `model_config.queue_policy`.
    """

    delay_us: StrictInt = Field(2000, ge=0, description="How long the batcher waits for more requests.")
    max_size: StrictInt = Field(0, ge=0, description="Maximum queued requests; 0 for no limit.")
    timeout_us: StrictInt = Field(0, ge=0, description="Maximum time in the queue; 0 for no limit.")
    on_timeout: Literal["reject", "delay"] = Field(
        "reject", description="What to do with a request that waited too long."
    )


class LlmServing(StrictModel):
    """Options of language models."""

    slots: StrictInt | None = Field(None, ge=1, description="Concurrent sequences; the engine's number if unset.")
    cache_gib: StrictFloat | StrictInt | None = Field(
        None, gt=0, description="Memory for paged caches on each GPU; as much as full slots take if unset."
    )
    host_cache_gib: StrictFloat | StrictInt = Field(
        2.0, ge=0, description="Host memory for caches that do not fit on the GPU; 0 for none."
    )
    weight_budget_gib: Annotated[StrictFloat | StrictInt, Field(ge=0)] | Literal["auto"] | None = Field(
        None, description="GPU memory for weights; the others are streamed from host memory. All if unset."
    )
    cache_dir: StrictStr | None = Field(
        None, description="Folder that keeps caches for later runs; each instance has a subfolder."
    )
    cache_dir_gib: StrictFloat | StrictInt = Field(16.0, gt=0, description="Maximum size of its files, per instance.")
    max_queue: StrictInt = Field(256, ge=1, description="Maximum requests waiting for a slot; others are rejected.")
    prefill_budget: StrictInt | None = Field(None, ge=1, description="New prompt tokens per step.")
    speculate: StrictInt | None = Field(
        None, ge=0, description="Draft tokens of the bundle's own head, 0 for none; 3 if unset and it has one."
    )
    schedule: ScheduleName = Field("priority", description="Which waiting request runs next.")
    shares: dict[str, StrictFloat | StrictInt] | None = Field(
        None, description="Weights of users, `*` for all others; users do not matter if unset."
    )
    lora: dict[StrictStr, StrictStr] | None = Field(
        None, description="Folders of LoRA adapters, by the names that the input `lora_name` takes."
    )
    default_max_tokens: StrictInt = Field(128, ge=1, description="Default number of output tokens.")


class DeployOptions(StrictModel):
    """How a bundle is served."""

    instances: StrictInt = Field(1, ge=1, description="Model instances, per GPU if there are GPUs.")
    gpus: tuple[StrictInt, ...] = Field((), description="GPUs to run on; all if empty.")
    max_batch_size: StrictInt | None = Field(None, ge=0, description="Largest batch; the profiles' if unset.")
    queue: QueueOptions = Field(QueueOptions(), description="The model's request queue.")
    cuda_graphs: StrictBool = Field(False, description="Capture CUDA graphs, with Triton's TensorRT backend.")
    response_cache: StrictBool = Field(False, description="Answer repeated requests from the server's cache.")
    warmup: StrictBool = Field(True, description="Run one request before the model becomes ready.")
    resources: dict[str, StrictInt] = Field(
        default_factory=dict, description="Resources that a running instance holds, for the rate limiter."
    )
    keep_versions: StrictInt = Field(1, ge=1, description="Number of newest versions to serve.")
    top_k: StrictInt = Field(5, ge=1, description="Number of classes in a classifier's answer.")
    llm: LlmServing = Field(LlmServing(), description="Options of language models.")

    @model_validator(mode="after")
    def _gpus_are_numbers(self) -> Self:
        if any(gpu < 0 for gpu in self.gpus) or len(set(self.gpus)) != len(self.gpus):
            raise ValueError("`gpus` must be a list of distinct numbers, 0 or greater")
        return self


def read_options(overrides: Sequence[str | Override]) -> DeployOptions:
    """Return the options that `KEY=VALUE` texts, or keyword arguments, change. Raises ConfigError with every fault."""
    data: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for override in read_overrides(overrides):
        override.apply(data)
        origins[override.key_path] = override.origin

    def where(path: KeyPath) -> str:
        return next(
            (origin for key, origin in origins.items() if key == path[: len(key)] or key[: len(path)] == path), ""
        )

    try:
        return DeployOptions.model_validate(data)
    except ValidationError as error:
        raise ConfigError("invalid deployment options", explain(error, DeployOptions, where)) from None
