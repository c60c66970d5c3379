"""Whether the ranks of a stage computed the same: one that drifts answers wrong without any error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import RankError

if TYPE_CHECKING:
    import torch

    from trtkit.reference import Rank

_TOLERANCE = 0.02
"""Relative RMS of logits between ranks at the start: kernels may differ by GPU, collectives that do nothing do more."""
_FIX = "restart; if it happens again, see whether every rank has the same engine files, GPU and NCCL"


def check_choices(logits: torch.Tensor, members: Rank, first_rank: int) -> None:
    """Raise RankError where another rank's logits [..., V] choose another token. Every rank of the stage calls this.

    first_rank: of the stage.
    """
    every = members.exchange("logits", logits.argmax(-1).reshape(-1).cpu())
    for rank, choices in enumerate(every):
        rows = (choices != every[0]).nonzero()
        if len(rows):
            row = int(rows[0])
            what = (
                f"rank {first_rank + rank} has drifted: row {row} of its logits chooses token {int(choices[row])}, "
                f"that of rank {first_rank} chooses {int(every[0][row])}"
            )
            raise RankError(what, "ranks", _FIX)


def check_values(logits: torch.Tensor, members: Rank, first_rank: int) -> None:
    """Raise RankError where the ranks' logits are not finite, or differ. Every rank of the stage calls this."""
    every = members.exchange("logits", logits.cpu())
    for rank, other in enumerate(every):
        if not other.isfinite().all():
            raise RankError(f"rank {first_rank + rank} gives logits that are not finite", "ranks", _FIX)
        error = float((other - every[0]).norm() / every[0].norm().clamp(min=1e-30))
        if error > _TOLERANCE:
            what = f"the logits of rank {first_rank + rank} differ from those of rank {first_rank} by {error:.2g}"
            raise RankError(f"{what}, relative RMS; at most {_TOLERANCE} is allowed", "ranks", _FIX)
