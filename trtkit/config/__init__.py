"""A model's config: one YAML file, validated before any work."""

from trtkit.config.load import load_config, shipped_configs
from trtkit.config.schema import BuildOptions, DimRange, ModelConfig, ShapeRange, Source, TorchSource
from trtkit.config.targets import Target, load_target, shipped_targets

__all__ = [
    "BuildOptions",
    "DimRange",
    "ModelConfig",
    "ShapeRange",
    "Source",
    "Target",
    "TorchSource",
    "load_config",
    "load_target",
    "shipped_configs",
    "shipped_targets",
]
