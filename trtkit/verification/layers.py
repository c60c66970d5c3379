"""Error and range of each tensor.

The network in its own precision compared with the same network in wider precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trtkit.network.layer_graph import MISSING
from trtkit.reference import Executor, Options, to_tensor
from trtkit.verification.report import LayerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trtkit.arrays import Array
    from trtkit.network.layer_graph import LayerGraph

    TensorsByName = Callable[[set[str]], Mapping[str, Array]]

# Largest finite and smallest normal and subnormal magnitudes: IEEE 754 for fp16, bfloat16 by its exponent, and the
# OCP 8-bit floating point specification (E4M3) for fp8.
LIMITS = {
    "fp16": (65504.0, 2.0**-14, 2.0**-24),
    "bf16": (3.3895313892515355e38, 2.0**-126, 2.0**-133),
    "fp8": (448.0, 2.0**-6, 2.0**-9),
}


PASS_BYTES = 1 << 30
_WIDE_BYTES = 8


@dataclass(frozen=True)
class LayerName:
    """The layer that produces a tensor."""

    layer: str
    kind: str
    node: str
    dtype: str
    reads: tuple[str, ...]


def layer_errors(
    layers: LayerGraph,
    inputs: Mapping[str, Any],
    reference: TensorsByName = lambda _: {},
) -> list[LayerError]:
    """Run a network widened and as it is on the same inputs; compare every nonempty float tensor, in order.

    Networks in fp16 and bf16 are widened to fp32, those in fp32 to fp64. Runs in as many passes as keep the widened
    tensors of each within one GiB. reference: returns tensors of these names from another source.
    """
    names = makers(layers)
    widen = "fp32" if any(name.dtype in {"fp16", "bf16"} for name in names.values()) else "fp64"
    wide = Executor(layers, Options(widen=widen))
    executor = Executor(layers)
    sizes: dict[str, int] = {}

    def note(tensor: str, value: Any) -> None:
        if tensor in names and isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            sizes[tensor] = value.numel() * _WIDE_BYTES

    executor.run(inputs, on_tensor=note)
    wide_inputs, errors = widened(inputs, widen), dict[str, LayerError]()
    for group in passes(sizes, PASS_BYTES):
        others, kept = reference(group), wide.run(wide_inputs, keep=group)

        def take(tensor: str, value: Any, group: set[str] = group, kept: Any = kept, others: Any = others) -> None:
            if tensor in group and tensor in kept:
                errors[tensor] = measure(names[tensor], tensor, value, kept[tensor], others.get(tensor))

        executor.run(inputs, on_tensor=take)
    return [errors[tensor] for tensor in sizes if tensor in errors]


def passes(sizes: Mapping[str, int], limit: int) -> Iterator[set[str]]:
    """Yield tensors in order, in groups of at most `limit` bytes; a larger tensor gets a group of its own."""
    group: set[str] = set()
    held = 0
    for name, size in sizes.items():
        if group and held + size > limit:
            yield group
            group, held = set(), 0
        group.add(name)
        held += size
    if group:
        yield group


def makers(layers: LayerGraph) -> dict[str, LayerName]:
    """Map each tensor to its layer; the parser records the ONNX node as `[ONNX Layer: name]`."""
    makers = {}
    for node in layers.nodes:
        onnx = str(node.attributes.get("metadata", "")).removeprefix("[ONNX Layer: ").removesuffix("]")
        reads = tuple(layers.spec(slot).name for slot in node.inputs if slot != MISSING)
        for output in map(layers.spec, node.outputs):
            makers[output.name] = LayerName(node.name, node.kind, onnx, output.dtype.name, reads)
    return makers


def widened(inputs: Mapping[str, Any], widen: str) -> dict[str, torch.Tensor]:
    """Return the inputs, with float ones in the type of the widened network."""
    dtype = torch.float64 if widen == "fp64" else torch.float32
    tensors = {name: to_tensor(value, name) for name, value in inputs.items()}
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def measure(name: LayerName, tensor: str, value: torch.Tensor, wide: torch.Tensor, reference: Any) -> LayerError:
    """Compare a tensor with its widened counterpart."""
    value, wide = (array.detach().to(torch.float64) for array in (value, wide))  # fp8 has few operations of its own
    magnitude = wide.abs()
    finite = magnitude[torch.isfinite(magnitude)]
    nonzero = finite[finite > 0]
    largest = float(finite.max()) if finite.numel() else 0.0
    return LayerError(
        layer=name.layer,
        kind=name.kind.lower(),
        node=name.node,
        tensor=tensor,
        dtype=name.dtype,
        relative_rms_error=_relative_rms(value, wide),
        is_finite=bool(torch.isfinite(value).all() or not torch.isfinite(wide).all()),
        largest=largest,
        smallest=float(nonzero.min()) if nonzero.numel() else 0.0,
        headroom_bits={kind: _headroom_bits(high, max(largest, tiny)) for kind, (high, _, tiny) in LIMITS.items()},
        flushed={kind: _share_below(nonzero, tiny / 2) for kind, (_, _, tiny) in LIMITS.items()},
        reads=name.reads,
        reference_error=None if reference is None else _relative_rms(wide, torch.from_numpy(reference)),
    )


def _relative_rms(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return `||a-b|| / ||b||` in fp64, as `compare` does; infinite if `a` is not finite where `b` is."""
    if value.shape != reference.shape:
        return math.inf
    a, b = value.detach().to(torch.float64).flatten(), reference.detach().to(torch.float64).flatten()
    finite = torch.isfinite(b)
    error = torch.linalg.vector_norm((a - b)[finite])
    if torch.isnan(error):
        return math.inf
    norm = float(torch.linalg.vector_norm(b[finite]))
    return float(error) / (norm or math.sqrt(max(1, b.numel())))


def _headroom_bits(limit: float, largest: float) -> float:
    """Return log2 of the factor by which `largest` can grow within `limit`."""
    return round(math.log2(limit / largest), 2)


def _share_below(values: torch.Tensor, bound: float) -> float:
    return round(float((values < bound).double().mean()), 4) if values.numel() else 0.0
