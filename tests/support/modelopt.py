"""Checkpoints written by ModelOpt."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def trtllm_checkpoint(model: torch.nn.Module, family: str, dtype: torch.dtype, ranks: int, stages: int = 1) -> Path:
    """Return a folder with a model's TensorRT-LLM checkpoint. ranks: tensor parallel. stages: pipeline parallel."""
    from modelopt.torch.export import export_tensorrt_llm_checkpoint  # takes seconds to import

    folder = Path(mkdtemp())
    sizes = {"inference_tensor_parallel": ranks, "inference_pipeline_parallel": stages}
    with contextlib.redirect_stdout(io.StringIO()):
        export_tensorrt_llm_checkpoint(model, family, dtype, export_dir=folder, **sizes)
    return folder
