"""2:4 sparsity: set two of every four adjacent weights in a row to zero, with ModelOpt's SparseGPT.

Source: https://arxiv.org/abs/2301.00774.
"""

from __future__ import annotations

import contextlib
import io
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import QuantizeError
from trtkit.quantization.llm.calibration import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from trtkit.arrays import Array
    from trtkit.quantization.llm.choice import LinearLayer

GROUP, KEPT = 4, 2


def prune(
    model: torch.nn.Module, layers: Sequence[LinearLayer], texts: Sequence[Sequence[int]], report: Callable[[int], None]
) -> None:
    """Prune layers of a transformers model in place; the remaining weights are adjusted on `texts` to compensate.

    Raises QuantizeError for layers that ModelOpt skips, as it does for odd sizes.
    """
    import modelopt.torch.sparsity as mts

    rules: dict[str, dict[str, object] | None] = {"*": None, **{layer.module: {} for layer in layers}}
    with contextlib.redirect_stdout(io.StringIO()):
        loop = partial(run, texts=texts, report=report)
        mts.export(mts.sparsify(model, [("sparsegpt", {"nn.Linear": rules})], {"forward_loop": loop}))
    modules = dict(model.named_modules())
    dense = [layer.name for layer in layers if not is_pruned(modules[layer.module].weight.detach().float().numpy())]
    if dense:
        what = f"ModelOpt's SparseGPT left {len(dense)} layers dense: {', '.join(dense[:4])}"
        raise QuantizeError(what, "quantize.sparsity", "exclude them: `quantize.exclude`")


def is_pruned(matrix: Array) -> bool:
    """Whether at most two of every four adjacent values in the rows of a matrix [out, in] are nonzero."""
    rows, size = matrix.shape
    whole = matrix[:, : size - size % GROUP].reshape(rows, -1, GROUP)
    rest = np.count_nonzero(matrix[:, size - size % GROUP :], axis=1)
    return bool((np.count_nonzero(whole, axis=2) <= KEPT).all() and (rest <= KEPT).all())
