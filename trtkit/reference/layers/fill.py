"""Tensors made from numbers: ramps and random values."""

from __future__ import annotations

import math
import os

import torch

from trtkit.errors import ExecutionError
from trtkit.reference.layer import Layer, Op, Tensor, sizes

MAX_BYTES = 8 << 30
"""No tensor is made from numbers alone that is larger, or than a quarter of the machine's memory."""


def fill(layer: Layer) -> Op:
    """Return a tensor of the layer's shape or that of input 0.

    LINSPACE: alpha + beta[i] * position along each axis i. RANDOM_UNIFORM: from alpha to beta. RANDOM_NORMAL: mean
    alpha, deviation beta. Random values come from torch's generator, so `torch.manual_seed` repeats them; no two
    libraries give the same ones. Source: IFillLayer in NvInfer.h.
    """
    operation, dtype = layer.option("operation"), layer.output_dtype()
    stated = None if layer.has_input(0) else layer.ints("shape")
    device = layer.precision.device
    constants = (layer.attribute("alpha"), layer.attribute("beta"))

    def run(shape: Tensor | None = None, alpha: Tensor | None = None, beta: Tensor | None = None) -> Tensor:
        wanted = list(stated) if stated is not None else sizes(shape)  # type: ignore[arg-type]
        _check_size(wanted, dtype, layer.name)
        first = constants[0] if alpha is None else alpha.item()
        if operation == "LINSPACE":
            deltas = [constants[1]] if beta is None else beta.reshape(-1).tolist()
            home = torch.device("cpu") if dtype in (torch.int32, torch.int64) and shape is not None else device
            return _ramp(wanted, first, deltas, torch.empty(0, dtype=dtype, device=home))
        second = constants[1] if beta is None else beta.item()
        wide = torch.empty(wanted, dtype=torch.float32, device=device)
        random = wide.uniform_(first, second) if operation == "RANDOM_UNIFORM" else wide.normal_(first, second)
        return random.to(dtype)

    return run


def _check_size(shape: list[int], dtype: torch.dtype, where: str) -> None:
    """Raise ExecutionError for a tensor that would fill the memory."""
    needed = math.prod(shape) * dtype.itemsize
    most = min(MAX_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    if needed > most:
        what = f"the FILL layer would make a tensor {shape} of {needed / 2**30:.1f} GiB"
        fix = "check the sizes that the network's inputs give this layer"
        raise ExecutionError(f"{what}; the reference executor makes none above {most / 2**30:.1f} GiB", where, fix)


def _ramp(shape: list[int], first: float, deltas: list[float], like: Tensor) -> Tensor:
    """Return first + the sum over axes of position times delta, in the type and place of `like`."""
    is_float = like.dtype.is_floating_point
    total = torch.full(shape, first if is_float else int(first), dtype=like.dtype, device=like.device)
    if len(deltas) < len(shape):
        deltas = deltas * len(shape)
    for axis, (size, delta) in enumerate(zip(shape, deltas, strict=False)):
        steps = torch.arange(size, dtype=like.dtype, device=like.device) * (delta if is_float else int(delta))
        total = total + steps.reshape(-1, *[1] * (len(shape) - axis - 1))
    return total
