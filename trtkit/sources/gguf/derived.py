"""Fields of a config.json that a GGUF file says by lists, or by which tensors its blocks have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata


def has_tensor(file: GgufFile, tensor: str) -> bool:
    """Whether the file has a tensor of this name, or any block has."""
    in_block = re.compile(rf"blk\.\d+\.{re.escape(tensor)}")
    return tensor in file.tensors or any(in_block.fullmatch(name) for name in file.tensors)


def kinds(metadata: Metadata, file: GgufFile, tensors: Mapping[str, str], otherwise: str) -> list[str]:
    """Return what kind each block is: that of the first tensor in `tensors` that it has."""
    names = [[f"blk.{index}.{tensor}" for tensor in tensors] for index in range(int(metadata.need("block_count")))]
    return [
        next(
            (kind for name, kind in zip(layer_names, tensors.values(), strict=True) if name in file.tensors), otherwise
        )
        for layer_names in names
    ]


def sliding_types(metadata: Metadata) -> list[str]:
    """Return `layer_types` of a file that lists which layers slide. Raises SourceError if it does not list all."""
    slides = metadata.need_list("attention.sliding_window_pattern")
    return ["sliding_attention" if is_sliding else "full_attention" for is_sliding in slides]


def key_heads(metadata: Metadata) -> Fields:
    """Return `num_key_value_heads` of a file that states none for layers without attention."""
    return {"num_key_value_heads": max(int(count) for count in metadata.listed("attention.head_count_kv"))}


def mamba_head(metadata: Metadata) -> int:
    """Return the size of a recurrent layer's head."""
    return int(metadata.need("ssm.inner_size")) // int(metadata.need("ssm.time_step_rank"))
