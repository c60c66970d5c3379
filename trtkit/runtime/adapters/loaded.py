"""An adapter that requests can use, its matrices on the host as the network reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

import torch

from trtkit.errors import SourceError
from trtkit.runtime.sequences import KEY_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array
    from trtkit.lora.adapter import Adapter, LowRank
    from trtkit.runtime.decoder.adapters import Matrices
    from trtkit.runtime.sequences import AdapterId


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter by the name that requests use."""

    name: str
    id: AdapterId
    rank: int
    matrices: Matrices = field(hash=False, compare=False)


@dataclass(frozen=True)
class PreparedAdapter:
    """An adapter that was read and checked. digest: of its files. key: see AdapterId."""

    digest: str
    rank: int
    matrices: Matrices = field(hash=False, compare=False)

    @property
    def key(self) -> int:
        """A number of KEY_BITS, of the digest."""
        return int.from_bytes(sha256(self.digest.encode()).digest()[:8], "little") % ((1 << KEY_BITS) - 1) + 1


def prepared_matrices(adapter: Adapter, dtype: torch.dtype) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return an adapter's matrices a [r, in] and b [r, out] by layer, b times the scale.

    Raises SourceError for values that are not finite in `dtype`.
    """
    matrices = {}
    for path, part in adapter.parts.items():
        a, b = (torch.from_numpy(each).to(dtype).contiguous() for each in _by_rank(part))
        if not (a.isfinite().all() and b.isfinite().all()):
            what = f"the adapter of `{path}` has values too large for {str(dtype).removeprefix('torch.')}"
            raise SourceError(what, str(adapter.folder), "build the engine with `precision: bf16`")
        matrices[path] = a, b
    return matrices


def _by_rank(part: LowRank) -> tuple[Array, Array]:
    """Return a [r, in] and b [r, out]."""
    a, b = part.matrices()
    return a, b.T
