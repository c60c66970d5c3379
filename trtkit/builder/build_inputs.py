"""A build's inputs, all gathered before it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trtkit.backends import choose_backend
from trtkit.builder import cache
from trtkit.builder.encoder import OpenedEncoder, open_encoder_source
from trtkit.builder.jobs import DIGEST
from trtkit.builder.plugins import uses_plugins
from trtkit.builder.profiles import check_keys
from trtkit.builder.vision_language import OpenedVision, open_vision
from trtkit.bundle.records import FileRecord
from trtkit.config.targets import Target, load_target
from trtkit.models.model import VISION
from trtkit.network.onnx.io import OnnxTensorSpec
from trtkit.quantization.by_part import check_names
from trtkit.resolve import resolve
from trtkit.sources.huggingface.preprocessing import config_labels
from trtkit.sources.huggingface.vision import torch_source

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.runner import Runner
    from trtkit.models.model import StagedModel


Tower = OpenedVision | OpenedEncoder


@dataclass(frozen=True)
class BuildInputs:
    """The inputs of a build.

    key: SHA-256 of everything that the plan depends on. uses_plugins: whether custom ops of ONNX files become plugins.
    labels: class names.
    """

    model: StagedModel
    target: Target
    backend: str
    sources: tuple[FileRecord, ...]
    tools: dict[str, str]
    key: str
    uses_plugins: bool = False
    labels: tuple[str, ...] = ()

    @cached_property
    def tower(self) -> Tower | None:
        """The stage before the language model; None if there is none. Raises SourceError, ProblemsError."""
        if self.model.takes_images:
            return open_vision(self.config)
        return open_encoder_source(self.config) if self.model.has_encoder else None

    @property
    def config(self) -> ModelConfig:
        """The config, including the preprocessing and output settings found in the source's folder."""
        return self.model.config


def gather_inputs(config: ModelConfig, runner: Runner) -> BuildInputs:
    """Resolve model, target and backend, and fingerprint the source and calibration data. Raises TrtkitError."""
    return gather_model_inputs(resolve(config), runner)


def gather_model_inputs(model: StagedModel, runner: Runner) -> BuildInputs:
    """Return the inputs of an already resolved model. Raises TrtkitError."""
    config = model.config
    labels = config_labels(model.config)
    if config.quantize is not None and model.spec is None:
        check_names(config.quantize, (VISION,) if model.takes_images else ())
    _check_profiles(model)
    target = load_target(config.target)
    backend = choose_backend(target.backend)
    has_plugins = uses_plugins(config, backend)
    digests = runner.run(DIGEST, config)
    sources, data = (tuple(FileRecord(**asdict(file)) for file in group) for group in (digests.files, digests.data))
    tools = cache.tool_versions()
    key = cache.build_key(model.config, target, backend, (*sources, *data), tools)
    return BuildInputs(model, target, backend, sources, tools, key, has_plugins, labels)


def _check_profiles(model: StagedModel) -> None:
    """Refuse profiles with keys that the model to be exported does not have. Raises ConfigError."""
    config = model.config
    if model.interface == "arrays" and model.spec is None and config.source.onnx is None and config.profiles:
        inputs = torch_source(config).inputs
        check_keys([OnnxTensorSpec(name, spec.dtype, spec.shape) for name, spec in inputs.items()], config.profiles)
