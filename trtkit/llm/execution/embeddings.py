"""The token embedding table of a decoder that takes vectors: a mapped file, of which each call reads rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trtkit.builder.embeddings import EMBEDDINGS, WEIGHT
from trtkit.errors import GenerationError

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.llm.execution.call import Call
    from trtkit.network.input_spec import InputSpec


class TokenEmbeddings:
    """Turns a call's tokens into `inputs_embeds`. table: [V, D] in the engine's type."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def inputs(self, call: Call, spec: InputSpec) -> torch.Tensor:
        """Return [R, S, D]: rows of the table, with a prompt's own vectors in place of its placeholders.

        spec: the network's input; if it is wider than the table, rows are padded with zeros.
        """
        vectors = self.table[torch.from_numpy(call.ids)]
        vectors = torch.nn.functional.pad(vectors, (0, spec.size_of("hidden_size") - vectors.shape[-1]))
        for row, soft in call.soft_rows():
            start = int(call.starts[row])
            part = soft.within(start, start + int(call.counts[row]))
            vectors[row, torch.from_numpy(soft.places[part] - start)] = soft.vectors[part].to(vectors.dtype)
        return vectors


def bundle_embeddings(folder: Path) -> TokenEmbeddings | None:
    """Map a bundle's table; None if its engine takes ids. Raises GenerationError if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    path = folder / EMBEDDINGS
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            return TokenEmbeddings(file.get_tensor(WEIGHT))
    except (OSError, SafetensorError) as error:
        raise GenerationError(f"cannot be read: {error}", str(path), "build the bundle again") from None
