"""TensorRT-LLM checkpoints of several ranks, as ModelOpt writes them, are shared among as many ranks as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.unit.sources.trtllm.test_trtllm import exported
from trtkit.builder.decoders import open_decoder
from trtkit.config.schema import ModelConfig
from trtkit.resolve import resolve
from trtkit.sources import decoder_source
from trtkit.sources.safetensors_file import read_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.builder.decoders import OpenedDecoder


def opened(folder: Path, tensor: int, rank: int) -> OpenedDecoder:
    llm = {"max_sequence_length": 32, "max_prefill_length": 16}
    fields: dict[str, Any] = {"source": {"trtllm": str(folder)}, "llm": llm, "parallel": {"tensor": tensor}}
    return open_decoder(resolve(ModelConfig.model_validate(fields)), rank=rank)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_is_what_modelopt_wrote_for_it(ranks: int) -> None:
    folder = exported("llama", ranks)
    for rank in range(ranks):
        stored = {name: array.read() for name, array in read_safetensors(folder / f"rank{rank}.safetensors").items()}
        weights = opened(folder, ranks, rank).weights()
        for layer in range(2):
            ours, theirs = f"layers.{layer}.", f"transformer.layers.{layer}."
            fused = np.concatenate([weights[f"{ours}attention.{name}.weight"] for name in "qkv"])
            assert np.array_equal(fused, stored[f"{theirs}attention.qkv.weight"])
            for own, other in (("attention.o", "attention.dense"), ("mlp.down", "mlp.proj"), ("mlp.gate", "mlp.fc")):
                assert np.array_equal(weights[f"{ours}{own}.weight"], stored[f"{theirs}{other}.weight"])


def test_a_rank_reads_its_own_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of layers come from the rank's file; norms, which all files hold, from the first."""
    folder, read = exported("llama", 2), dict[str, set[str]]()

    def noted(path: Path) -> Any:
        def reading(name: str, array: Any) -> Any:
            def run() -> Any:
                read.setdefault(name, set()).add(path.name)
                return array.read()

            return type(array)(array.shape, run, array.is_quantized)

        return {name: reading(name, array) for name, array in read_safetensors(path).items()}

    monkeypatch.setattr(decoder_source, "read_safetensors", noted)
    weights = opened(folder, 2, 1).weights()
    read.clear()
    for path in weights:
        weights[path]
    matrices = {name: files for name, files in read.items() if "layers" in name and "norm" not in name}
    assert len(matrices) > 8
    assert all(files == {"rank1.safetensors"} for files in matrices.values()), matrices
