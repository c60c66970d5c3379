"""The job that refuses types that a target cannot compute in, before a model is quantized for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.backends import load_backend
from trtkit.config.schema import ModelConfig
from trtkit.jobs.events import Phase
from trtkit.network.targets import check_named_types
from trtkit.quantization.vision.model import check_options

if TYPE_CHECKING:
    from trtkit.jobs.job import Context

Json = dict[str, Any]


def check_target(arguments: Json, context: Context) -> Json:
    """Refuse methods that are not for vision models, or whose types a target's GPUs cannot compute in.

    is_decoder: whether `config` is of an LLM; fallback: the method of layers that a budget leaves, if any; backend: its
    name; target: as in its file. Raises ConfigError.
    """
    options, target = ModelConfig.model_validate(arguments["config"]).quantize, arguments["target"]
    assert options is not None
    context.report(Phase("check target"))
    if not arguments["is_decoder"]:
        check_options(options)
    types = options.types(arguments.get("fallback"))
    features = load_backend(arguments["backend"]).features
    check_named_types(types, target["name"], target["compute_capabilities"], features)
    return {}
