"""What a command's PATH stands for: a bundle, a config, or a bare ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.config.schema import ModelConfig


def is_bundle_folder(path: str) -> bool:
    """Whether `path` is a folder, and so can only be a bundle. Names of shipped configs win over other folders."""
    from trtkit.bundle.bundle import is_bundle
    from trtkit.config.load import shipped_configs

    return is_bundle(Path(path)) or (Path(path).is_dir() and path not in shipped_configs())


def model_config(path: str, overrides: Sequence[str], target: str | None) -> ModelConfig:
    """Return the config at `path`, or the one that a bare ONNX file stands for."""
    from trtkit.config import load_config
    from trtkit.config.load import config_for_onnx

    if path.endswith(".onnx"):
        if not Path(path).exists():
            raise SourceError("no such file", path, "check the path")
        return config_for_onnx(Path(path), overrides, target)
    return load_config(path, overrides, target)
