"""The job that refuses types that a target cannot compute in, before a model is quantized for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.backends import load_backend
from trtkit.config.schema import ModelConfig
from trtkit.engine.quantization import vision
from trtkit.engine.quantization.methods import METHODS
from trtkit.network.targets import check_named_types

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]


def check_target(arguments: Json, report: Callable[[Json], None]) -> Json:
    """Refuse methods whose types a target's GPUs cannot compute in.

    is_decoder: whether `config` is of an LLM; backend: its name; target: as in its file. Raises ConfigError.
    """
    if not arguments["is_decoder"]:
        return vision.check_target(arguments, report)
    options, target = ModelConfig.model_validate(arguments["config"]).quantize, arguments["target"]
    assert options is not None
    formats = {METHODS[name].format for name in (options.method, *options.layers.values()) if name in METHODS}
    types = {"fp8" if kind == "mxfp8" else kind for kind in formats} | (
        {options.kv_cache} if options.kv_cache else set()
    )
    features = load_backend(arguments["backend"]).features
    check_named_types(types, target["name"], target["compute_capabilities"], features)
    return {}
