"""Products with constant matrices, identified before a network is compiled for speed.

Matrices that multiply the same tensor become one product, unless their weights are read in place. Quantized matrices
keep their codes and scales: the layers that dequantize them are not computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from trtkit.reference.layer import weights_tensor
from trtkit.reference.layers.quantization import dequantized

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.network.layer_graph import LayerNode, LayerWeights, TensorSpec
    from trtkit.reference.layer import Tensor
    from trtkit.reference.precision import Precision


@dataclass(frozen=True, eq=False)
class ConstantMatrix:
    """A matrix that multiplies every row of a tensor.

    held: numbers, or codes, in `shape`. dtype: of the multiplied rows. is_transposed: [out, in] rather than [in, out].
    scales: of codes, two axes that repeat along or divide those of `shape`; None for numbers.
    """

    held: LayerWeights
    shape: tuple[int, int]
    scales: Tensor | None
    dtype: torch.dtype
    is_transposed: bool

    @property
    def inputs(self) -> int:
        """Return the size of an input row."""
        return self.shape[1] if self.is_transposed else self.shape[0]

    @property
    def outputs(self) -> int:
        """Return the size of an output row."""
        return self.shape[0] if self.is_transposed else self.shape[1]

    def codes(self) -> Tensor:
        """Return the numbers or codes in `shape`, with 4-bit types unpacked."""
        return weights_tensor(self.held).reshape(self.shape)

    def dense(self) -> Tensor:
        """Return the matrix [out, in], dequantized as its layer does."""
        values = self.codes()
        if self.scales is not None:
            narrow = self._narrow_scales if values.dtype == torch.int8 else None
            if narrow is None:
                values = dequantized(values, self.scales, None, 0, self.dtype)
            else:
                values = _times_scales(values, narrow)
        return values if self.is_transposed else values.mT

    @cached_property
    def _narrow_scales(self) -> Tensor | None:
        """Return the scales in the dequantized type, None if the conversion would change them."""
        assert self.scales is not None
        narrow = self.scales.to(self.dtype)
        return narrow if torch.equal(narrow.float(), self.scales) else None

    @property
    def scale_counts(self) -> tuple[int, int]:
        """Return the number of scales along the outputs and along the inputs."""
        assert self.scales is not None
        first, second = self.scales.shape
        return (first, second) if self.is_transposed else (second, first)

    @property
    def is_read_in_place(self) -> bool:
        """Whether products read the weights in place: fp32 ones, which are as fast separately as joined."""
        return self.scales is None and self.dtype == torch.float32

    @property
    def form(self) -> tuple[Any, ...]:
        """Return the properties that matrices must share to be joined."""
        blocks = None if self.scales is None else self.scale_counts[1]
        return self.dtype, self.held.dtype.name, self.is_transposed, self.inputs, blocks

    def output_scales(self) -> Tensor:
        """Return the scales [out, blocks]."""
        assert self.scales is not None
        scales = self.scales if self.is_transposed else self.scales.mT
        return scales.expand(self.outputs, -1)


def _times_scales(codes: Tensor, scales: Tensor) -> Tensor:
    """Return int8 codes [a, b] times scales that divide both axes, in the scales' type: one pass, rounded once."""
    (rows, columns), sizes = scales.shape, codes.shape
    blocks = codes.view(rows, sizes[0] // rows, columns, sizes[1] // columns)
    return torch.mul(blocks, scales[:, None, :, None]).view(sizes)


def joined_products(
    nodes: Sequence[LayerNode], specs: Sequence[TensorSpec | None], precision: Precision
) -> tuple[list[LayerNode], dict[LayerNode, tuple[ConstantMatrix, ...]]]:
    """Return the nodes, with products of the same tensor by constant matrices joined, and their matrices.

    Networks with loops or conditionals keep each product separate, since each may run a different number of times.
    """
    producers = {slot: node for node in nodes for slot in node.outputs}
    matrices = {
        node: matrix for node in nodes if (matrix := _constant_matrix(node, producers, specs, precision)) is not None
    }
    has_constructs = any(node.construct for node in nodes)
    groups: dict[Any, list[LayerNode]] = {}
    for node, matrix in matrices.items():
        is_alone = has_constructs or matrix.is_read_in_place
        groups.setdefault(node if is_alone else (node.inputs[0], matrix.form), []).append(node)
    joined = {group[0]: group for group in groups.values()}
    finished, products = [], {}
    for node in nodes:
        if node in joined:
            product = _joined(joined[node])
            products[product] = tuple(matrices[part] for part in joined[node])
            finished.append(product)
        elif node not in matrices:
            finished.append(node)
    return finished, products


def _joined(nodes: Sequence[LayerNode]) -> LayerNode:
    """Return products of one tensor as one node with an output per product."""
    outputs = tuple(slot for node in nodes for slot in node.outputs)
    return replace(nodes[0], name=" + ".join(node.name for node in nodes), inputs=nodes[0].inputs[:1], outputs=outputs)


def _constant_matrix(
    node: LayerNode,
    producers: Mapping[int, LayerNode],
    specs: Sequence[TensorSpec | None],
    precision: Precision,
) -> ConstantMatrix | None:
    """Return the constant matrix with which a node multiplies all rows, or None."""
    forms = ("NONE", "TRANSPOSE")
    if node.kind != "MATRIX_MULTIPLY" or node.attributes["op0"] != "NONE" or node.attributes["op1"] not in forms:
        return None
    rows, of_matrix, maker = specs[node.inputs[0]], specs[node.inputs[1]], producers.get(node.inputs[1])
    if rows is None or rows.shape is None or of_matrix is None or maker is None:
        return None
    quantized = maker if maker.kind == "DEQUANTIZE" and len(maker.inputs) == 2 else None  # without a zero point
    held, shape = _constant(maker if quantized is None else producers.get(quantized.inputs[0], maker))
    if held is None or not 2 <= len(shape) <= len(rows.shape) or set(shape[:-2]) - {1}:
        return None
    scales = None
    if quantized is not None:
        scales = _scales(quantized, len(shape), producers.get(quantized.inputs[1]))
        if scales is None:
            return None
    dtype, is_transposed = precision.storage(of_matrix.dtype), node.attributes["op1"] == "TRANSPOSE"
    return ConstantMatrix(held, (shape[-2], shape[-1]), scales, dtype, is_transposed)


def _scales(quantized: LayerNode, rank: int, maker: LayerNode | None) -> Tensor | None:
    """Return a matrix's scales with two axes, for its rank; None if they are computed at run time."""
    held, shape = (None, ()) if maker is None else _constant(maker)
    if held is None:
        return None
    values = weights_tensor(held).float().reshape(shape)
    if values.numel() == 1:
        return values.reshape(1, 1)
    if values.dim() > 1:
        return values.reshape(shape[-2:])
    axis = quantized.attributes["axis"]
    assert isinstance(axis, int)
    return values.reshape(-1, 1) if axis % rank == rank - 2 else values.reshape(1, -1)


def _constant(node: LayerNode) -> tuple[LayerWeights | None, tuple[int, ...]]:
    """Return the weights of a constant and its shape."""
    shape = node.attributes.get("shape")
    if node.kind != "CONSTANT" or not isinstance(shape, tuple):
        return None, ()
    return node.weights.get("weights"), tuple(int(size) for size in shape)
