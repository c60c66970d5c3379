"""One tiny model on several grids of ranks."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.support import tiny_llm
from trtkit.builder.build import build_bundle
from trtkit.config.schema import ModelConfig
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GRIDS = {
    "one": None,
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
    "pipeline, paged": {"pipeline": 2},
    "both": {"tensor": 2, "pipeline": 2},
    "both, paged": {"tensor": 2, "pipeline": 2},
    "tensor, packed": {"tensor": 2},
    "tensor, packed, paged": {"tensor": 2},
    "sequence": {"tensor": 2, "sequence": True},
    "sequence, paged": {"tensor": 4, "sequence": True},
    "context": {"tensor": 2, "context": 2},
    "context, paged": {"tensor": 4, "context": 4},
    "context, both": {"tensor": 2, "context": 2, "pipeline": 2},
}
SIZES = {"max_batch_size": 8, "max_sequence_length": 128, "max_prefill_length": 64}


@pytest.fixture(scope="session")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a grid to the model's bundle, which is built on first use."""
    folder = tmp_path_factory.mktemp("ranks")
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
    tiny_llm.save(folder / "model", num_hidden_layers=3, **heads)  # stages of two layers and of one

    @cache
    def bundle(grid: str) -> Path:
        sizes = {**SIZES, "kv": "paged", "page_tokens": 16} if "paged" in grid else SIZES
        sizes = {**sizes, "batching": "packed"} if "packed" in grid else sizes
        config = {"source": {"hf": str(folder / "model")}, "precision": "fp32", "llm": sizes, "parallel": GRIDS[grid]}
        return build_bundle(ModelConfig.model_validate(config), folder / grid, new_runner()).bundle.path

    return bundle


def rank_processes() -> list[str]:
    """Return this process's children that are ranks."""
    command = ["ps", "--ppid", str(os.getpid()), "-o", "args="]
    lines = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if "trtkit.llm.distributed" in line]
