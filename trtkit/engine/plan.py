"""Everything a build follows from, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.backends import choose_backend
from trtkit.bundle.manifest import FileRecord
from trtkit.config.targets import Target, load_target
from trtkit.engine import cache
from trtkit.engine.hybrids import is_hybrid
from trtkit.engine.jobs import DIGEST
from trtkit.engine.plugins import uses_plugins
from trtkit.engine.vision_language import takes_images
from trtkit.models.registry import FAMILIES, is_language_model, unsupported_family
from trtkit.models.vision_language.registry import VISION_LANGUAGE
from trtkit.quantization.by_part.choice import VISION, check_names
from trtkit.sources.safetensors_folder import json_object

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.runner import Runner

Json = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """A build before it starts.

    is_decoder: the source is a decoder-only LLM, written by the network API. is_hybrid: a model of several parts.
    takes_images: the LLM has a vision tower beside it. uses_plugins: custom ops of ONNX files become plugins.
    """

    config: ModelConfig
    target: Target
    backend: str
    sources: tuple[FileRecord, ...]
    tools: dict[str, str]
    key: str
    is_decoder: bool
    is_hybrid: bool = False
    takes_images: bool = False
    uses_plugins: bool = False


def plan_build(config: ModelConfig, runner: Runner) -> Plan:
    """Resolve target and backend and fingerprint the source and calibration data. Raises TrtkitError."""
    if config.quantize is not None and not is_hybrid(config):
        check_names(config.quantize, (VISION,) if takes_images(config) else ())
    kinds = is_decoder(config), is_hybrid(config), takes_images(config)
    target = load_target(config.target)
    backend = choose_backend(target.backend)
    has_plugins = uses_plugins(config, backend)
    digests = runner.run(DIGEST, config)
    sources = tuple(FileRecord(**vars(file)) for file in digests.files)
    data = tuple(FileRecord(**vars(file)) for file in digests.data)
    tools = cache.tool_versions()
    key = cache.build_key(config, target, backend, (*sources, *data), tools)
    return Plan(config, target, backend, sources, tools, key, *kinds, uses_plugins=has_plugins)


def is_decoder(config: ModelConfig) -> bool:
    """Whether the source is a decoder-only LLM: GGUF, TensorRT-LLM, or a Hugging Face folder of a known family.

    A Hugging Face folder whose config has an `llm` section is one by that. Raises SourceError for a language model of
    another family.
    """
    source = config.source
    if source.gguf is not None or source.trtllm is not None:
        return True
    if source.hf is None:
        return False
    fields = json_object(Path(source.hf) / "config.json")
    model_type = str(fields.get("model_type", ""))
    is_known = config.llm is not None or model_type in _LLMS
    if not is_known and is_language_model(fields):
        raise unsupported_family(model_type, str(Path(source.hf) / "config.json"))
    return is_known


_LLMS = {*FAMILIES, *VISION_LANGUAGE}
