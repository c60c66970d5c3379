"""Prepares a config's model: the ONNX file that TensorRT parses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.builder.jobs import PrepareRequest
from trtkit.builder.prepare import prepare
from trtkit.config.schema import ModelConfig
from trtkit.jobs.job import JobContext

if TYPE_CHECKING:
    from pathlib import Path


def prepared(config: ModelConfig, folder: Path, quantize: dict[str, Any] | None = None) -> Path:
    """Return the ONNX file that TensorRT parses for `config`, in a new folder."""
    folder.mkdir()
    quantized = ModelConfig.model_validate({**config.model_dump(mode="json"), "quantize": quantize})
    prepare(PrepareRequest(quantized, folder), JobContext())
    return folder / "network/model.onnx"


def from_onnx(config: ModelConfig, path: Path) -> ModelConfig:
    """Return the config with an already exported model."""
    return config.model_copy(update={"source": config.source.model_copy(update={"torch": None, "onnx": str(path)})})
