"""The token embedding table of a bundle whose engine takes embeddings instead of token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.network.host_array import host_array

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from trtkit.dtypes import DType
    from trtkit.models.spec import DecoderSpec

EMBEDDINGS, WEIGHT = "model/embeddings.safetensors", "weight"


def embedding_table(spec: DecoderSpec, weights: Mapping[str, Any], dtype: DType) -> torch.Tensor:
    """Return the rows [V, D] of `inputs_embeds` in the engine's type, scaled as in the model."""
    import torch

    memory = host_array(weights["embedding.weight"], dtype)
    raw = np.array(memory.raw_bytes())
    table = torch.from_numpy(raw).view(getattr(torch, dtype.torch)).reshape(memory.shape)
    scale = torch.tensor(spec.embedding.scale, dtype=table.dtype)
    return table if spec.embedding.scale == 1 else table * scale


def write_embeddings(table: torch.Tensor, folder: Path) -> Path:
    """Write the table into the bundle `folder`; return the file's path."""
    from safetensors.torch import save_file

    path = folder / EMBEDDINGS
    path.parent.mkdir(exist_ok=True)
    save_file({WEIGHT: table}, path)
    return path
