"""Slots and steps of a model whose config leaves their lengths open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.unit.sources.gguf.write_gguf import tiny
from trtkit.config.load import find_model_config
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path


def lengths(path: Path, *overrides: str) -> tuple[int, int]:
    options = resolve(find_model_config(str(path), overrides)).config.llm
    assert options is not None
    return options.max_sequence_length, options.max_prefill_length


def test_slots_of_a_gguf_file_are_no_longer_than_its_model(tmp_path: Path) -> None:
    file = tiny(tmp_path / "m.gguf")  # of 64 positions
    assert lengths(file) == (64, 64)
    assert lengths(file, "llm.max_prefill_length=16") == (64, 16)
    assert lengths(file, "llm.max_sequence_length=48") == (48, 48)
    assert lengths(file, "llm.max_sequence_length=4096", "llm.max_prefill_length=512") == (4096, 512)


def test_slots_of_a_tensorrt_llm_checkpoint_are_no_longer_than_its_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"architecture": "LlamaForCausalLM", "max_position_embeddings": 96})
    )
    assert lengths(tmp_path) == (96, 96)


def test_a_file_that_cannot_be_read_is_left_to_whoever_opens_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert lengths(tmp_path / "m.gguf", "llm.max_batch_size=2") == (2048, 512)
