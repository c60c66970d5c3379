"""Gated short convolutions, and the causal convolution that other recurrent layers begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32
from trtkit.network.ops.convolution import causal_convolution, last_tokens
from trtkit.network.ops.shape import split

if TYPE_CHECKING:
    from trtkit.models.recurrent import ConvSpec
    from trtkit.network.blocks.states import States
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor


def conv_block(weights: Weights, x: Tensor, spec: ConvSpec, states: States) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute `out(c * conv(b * x))` of x [B, S, D]; return [B, S, D] and the updated state."""
    with x.graph.scope("conv"):
        b, c, inner = split(weights.linear("in", x, has_bias=spec.has_bias), -1, (spec.channels,) * 3)
        convolved, state = convolution(weights, b * inner, states, has_bias=spec.has_bias)
        y = weights.linear("out", c * convolved, has_bias=spec.has_bias, ranks=spec.share.count)
        return y, {"conv": state}


def convolution(weights: Weights, x: Tensor, states: States, *, has_bias: bool) -> tuple[Tensor, Tensor]:
    """Convolve each channel of x [B, S, C] with the weights of `taps` in fp32; return it and the updated state."""
    graph = x.graph
    with graph.scope("taps"):
        kernel = np.asarray(weights.array("weight")).astype(np.float32)  # [C, 1, L]
        taps = [graph.constant(kernel[None, :, :, at].transpose(0, 2, 1), "tap") for at in range(kernel.shape[2])]
        bias = None
        if has_bias:
            bias = graph.constant(np.asarray(weights.array("bias")).astype(np.float32)[None, None], "bias", FP32)
        y, tokens = causal_convolution(x, states.arrays["conv"], taps, bias)
        return y, last_tokens(tokens, states.token_counts, kernel.shape[2] - 1)
