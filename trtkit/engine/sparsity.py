"""Whether a language model's weights have the zeros that TensorRT's sparse kernels want."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import ConfigError, Problem
from trtkit.quantization.llm.choice import pruned_layers
from trtkit.quantization.llm.sparsity import is_pruned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.engine.decoders import OpenedDecoder

_SHOWN = 4


def check_sparse(opened: OpenedDecoder, weights: Mapping[str, Any]) -> str:
    """Return how many layers are sparse, for people: all of the rank's, but for the head and what was not to be pruned.

    weights: the rank's, by path. Raises ConfigError naming layers that are not.
    """
    spec, options = opened.own, opened.config.quantize
    layers = pruned_layers(spec, () if options is None else options.exclude)
    dense = []
    for layer in layers:
        matrix = np.asarray(weights[f"{layer.name}.weight"], np.float32)
        if not is_pruned(matrix.T if spec.is_in_out else matrix):
            dense.append(layer.name)
    if dense:
        shown = f"{len(dense)} of {len(layers)} linear layers, {', '.join(dense[:_SHOWN])},"
        what = f"{shown} have more than two weights in four that are not zero"
        problem = Problem(what, "build.sparse_weights", "prune them with `quantize.sparsity: 2:4`, or leave it out")
        raise ConfigError(f"the config does not fit {opened.source.where}", [problem])
    return f"{len(layers)} linear layers are 2:4"
