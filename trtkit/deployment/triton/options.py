"""Options of `trtkit deploy --set`: how a model is scheduled, and what the server adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Self

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
    model_validator,
)

from trtkit.config.explain import explain
from trtkit.config.overrides import read_overrides
from trtkit.config.strict import StrictModel
from trtkit.errors import ConfigError
from trtkit.serving_options import Kind, ServingField, ServingOptions, default_of, help_of, option_of, serving_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.config.overrides import Override
    from trtkit.config.yaml_file import KeyPath


class QueueOptions(StrictModel):
    """The queue in front of a model; language models use their engine's. Times are in microseconds.

    on_timeout: reject the request, or serve it after the others. Limits have a cost in Triton 2.51: see
    `model_config.queue_policy`.
    """

    delay_us: StrictInt = Field(2000, ge=0, description="How long the batcher waits for more requests.")
    max_size: StrictInt = Field(0, ge=0, description="Maximum queued requests; 0 for no limit.")
    timeout_us: StrictInt = Field(0, ge=0, description="Maximum time in the queue; 0 for no limit.")
    on_timeout: Literal["reject", "delay"] = Field(
        "reject", description="What to do with a request that waited too long."
    )


_TYPES: dict[Kind, object] = {
    "count": StrictInt,
    "gib": StrictFloat | StrictInt,
    "budget": Annotated[StrictFloat | StrictInt, Field(ge=0)] | Literal["auto"],
    "folder": StrictStr,
    "weights": dict[str, StrictFloat | StrictInt],
    "folders": dict[StrictStr, StrictStr],
}


def _key(item: ServingField) -> tuple[object, object]:
    """Return a field of ServingOptions in the form that pydantic takes."""
    option, default = option_of(item), default_of(item, "triton")
    has_limit = option.kind in {"count", "gib"}
    above, least = (0 if has_limit and option.least is None else None), (option.least if has_limit else None)
    kind = Literal[option.choices] if option.kind == "name" else _TYPES[option.kind]
    text = help_of(item, "triton", with_default=False)
    if default is None:
        text = f"{text.removesuffix('.')}; {option.default_text or 'none'} if unset."
        kind = Optional[kind]  # noqa: UP045  # the operator takes types only
    return kind, Field(default, description=text, gt=above, ge=least)


LlmServing: type[StrictModel] = create_model(
    "LlmServing",
    __base__=StrictModel,
    __doc__="Options of language models.",
    **{name: _key(item) for name, item in serving_fields("triton").items()},  # type: ignore[call-overload]
    default_max_tokens=(StrictInt, Field(128, ge=1, description="Default number of output tokens.")),
)


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

    @property
    def default_max_tokens(self) -> int:
        """Default number of output tokens of a language model's request."""
        return int(self.llm.model_dump()["default_max_tokens"])

    @property
    def serving(self) -> ServingOptions:
        """How a language model runs."""
        return ServingOptions(**self.llm.model_dump(exclude={"default_max_tokens"}))

    @model_validator(mode="after")
    def _gpus_are_numbers(self) -> Self:
        if any(gpu < 0 for gpu in self.gpus) or len(set(self.gpus)) != len(self.gpus):
            raise ValueError("`gpus` must be a list of distinct numbers, 0 or greater")
        return self


def read_options(overrides: Sequence[str | Override]) -> DeployOptions:
    """Return the options with the changes of `KEY=VALUE` texts or keyword arguments.

    Raises ConfigError with every fault.
    """
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
        raise ConfigError("invalid deployment options", explain(error, DeployOptions, where, shown_by="")) from None
