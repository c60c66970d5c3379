"""Matrix products; those with constant matrices use weights in the processor's fastest layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch

from trtkit.reference.layer import Layer, Lowered, Op, Tensor
from trtkit.reference.precision import packs
from trtkit.sources.safetensors_file import release

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.reference.constant_matrices import ConstantMatrix

# Shapes: R rows, K inputs, N outputs, G blocks of inputs.

_PACKED_SIZE = 64
"""Minimum rows and columns for packing a matrix."""

FEW_ROWS = 12
"""Maximum rows for which torch's own fp16 product on CPUs is faster than fp32 on converted matrices; measured."""

Product = Callable[[Tensor], Tensor]
"""Maps rows [.., K] to their products [.., N]."""


def matrix_multiply(layer: Layer) -> Lowered:
    """Multiply batches of matrices or vectors, transposed as the layer specifies."""
    left, right = layer.option("op0"), layer.option("op1")
    multiply = _multiplication(layer)

    def run(a: Tensor, b: Tensor) -> Tensor:
        a = a.mT if left == "TRANSPOSE" else a.unsqueeze(-2) if left == "VECTOR" else a
        b = b.mT if right == "TRANSPOSE" else b.unsqueeze(-1) if right == "VECTOR" else b
        y: Tensor = multiply(a, _as_one_matrix(b) if 2 < b.dim() <= a.dim() else b)
        y = y.squeeze(-1) if right == "VECTOR" else y
        return y.squeeze(-2 if right != "VECTOR" else -1) if left == "VECTOR" else y

    return Lowered(run)


def _multiplication(layer: Layer) -> Op:
    """Return torch's product, or one with the layer's accumulation type."""
    dtype = layer.input_dtype()
    return torch.matmul if layer.precision.accumulation(dtype) == dtype else summed_in_fp32


def _as_one_matrix(b: Tensor) -> Tensor:
    """Return a batch of one matrix as a plain matrix, with which torch multiplies all rows at once, much faster."""
    leading = b.shape[:-2]
    return b.squeeze(tuple(range(len(leading)))) if leading.numel() == 1 else b


def summed_in_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Multiply fp16 matrices, accumulating in fp32 and rounding the result to fp16.

    torch itself does so for few rows times a transposed matrix, without converting it, which is how a model decodes one
    token.
    """
    is_few = b.dim() == 2 and b.stride(0) == 1 and a.numel() <= FEW_ROWS * a.shape[-1]
    if is_few and _torch_sums_in_fp32():
        return torch.matmul(a, b)
    return torch.matmul(a.float(), b.float()).to(a.dtype)


@cache
def _torch_sums_in_fp32() -> bool:
    """Whether torch's fp16 products of few rows are exact here if partial sums exceed fp16's range and precision."""
    row = torch.cat((torch.full((2048,), 1001.0), torch.full((2048,), -1000.0))).half()
    products = [torch.ones(count, 4096).half() @ row.expand(3, -1).contiguous().mT for count in (1, 3, FEW_ROWS)]
    return all(bool((product == 2048).all()) for product in products)


def constant_products(layer: Layer, matrices: Sequence[ConstantMatrix]) -> Lowered:
    """Return the product with constant matrices, with one output per matrix.

    Weights are packed when the product first runs; their own memory is then released if it is mapped from a file.
    """
    multiply = _multiplication(layer)
    sizes, packed = [matrix.outputs for matrix in matrices], list[Product]()

    def split(y: Tensor) -> Tensor | tuple[Tensor, ...]:
        return y if len(sizes) == 1 else torch.split(y, sizes, -1)

    def run(a: Tensor) -> Tensor | tuple[Tensor, ...]:
        return split(torch.cat([multiply(a, matrix.dense().mT) for matrix in matrices], -1))

    def fast(a: Tensor) -> Tensor | tuple[Tensor, ...]:
        if not packed:
            packed.append(_packed_product(matrices, multiply))
        return split(packed[0](a) if a.numel() else a.new_zeros(*a.shape[:-1], sum(sizes)))

    return Lowered(run, packed=fast)


def _packed_product(matrices: Sequence[ConstantMatrix], multiply: Op) -> Product:
    """Return the product with concatenated matrices of the same form."""
    of_codes = _product_of_codes(matrices)
    if of_codes is not None:
        return of_codes
    whole = _side_by_side([matrix.dense() for matrix in matrices])
    dense = _dense_product(whole)
    if dense is None and len(matrices) == 1 and matrices[0].scales is None:
        return lambda a: multiply(a, whole.mT)
    _release(matrices)
    return dense or (lambda a: multiply(a, whole.mT))


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _release(matrices: Sequence[ConstantMatrix]) -> None:
    for matrix in matrices:
        release(matrix.held.raw)


def _dense_product(matrix: Tensor) -> Product | None:
    """Return the product with a matrix [N, K] in a library's layout, or None if torch's own is as fast."""
    if min(matrix.shape) < _PACKED_SIZE:
        return None
    is_faster = (
        packs(matrix.dtype) if matrix.dtype == torch.bfloat16 else matrix.dtype == torch.float16 and _adds_fp16()
    )
    if not is_faster:
        return None
    reordered = torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous())
    return lambda a: torch.ops.mkldnn._linear_pointwise(a, reordered, None, "none", [], "")


@cache
def _adds_fp16() -> bool:
    """Whether oneDNN multiplies fp16 here, accumulating in fp32 if partial sums exceed fp16's range and precision."""
    if not torch._C._has_mkldnn or not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        return False
    row = torch.cat((torch.full((2048,), 1001.0), torch.full((2048,), -1000.0))).half()
    reordered = torch.ops.mkldnn._reorder_linear_weight(row.expand(64, -1).contiguous())
    ones = [torch.ones(count, 4096).half() for count in (1, 3, 70)]
    products = [torch.ops.mkldnn._linear_pointwise(item, reordered, None, "none", [], "") for item in ones]
    return all(bool((product == 2048).all()) for product in products)


def _product_of_codes(matrices: Sequence[ConstantMatrix]) -> Product | None:
    """Return the product with quantized matrices, read as codes; None if no kernel computes it exactly."""
    first = matrices[0]
    if first.scales is None:
        return None
    kernel = _bf16_kernel(matrices)
    if kernel is not None:
        product: Product = _FewRows(matrices, kernel)
    elif first.held.dtype.name == "int8" and first.scale_counts[1] == 1 and _adds_codes_exactly():
        product = _Digits(_codes(matrices), _scales(matrices)[:, 0])
    else:
        return None
    _release(matrices)
    return product


def _codes(matrices: Sequence[ConstantMatrix]) -> Tensor:
    """Return codes [N, K] of concatenated matrices."""
    return _side_by_side([matrix.codes() if matrix.is_transposed else matrix.codes().mT for matrix in matrices])


def _scales(matrices: Sequence[ConstantMatrix]) -> Tensor:
    """Return fp32 scales [N, G] of concatenated matrices."""
    return torch.cat([matrix.output_scales() for matrix in matrices])


_DIGIT_BITS, _ZERO = 8, 128  # digits are -128 to 127, held as 0 to 255
_DIGITS = 3
"""Digits of a row's number: 24 bits below its largest one, as many as fp32 has."""


class _Digits:
    """An exact product with int8 codes [N, K], read as they are: rows are split into one-byte digits."""

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        self._codes = torch.ops.onednn.qlinear_prepack(codes.contiguous(), [_DIGITS, codes.shape[1]])
        self._scales, self._zeros = scales.contiguous(), torch.zeros(len(scales), dtype=torch.int64)
        self._factors = 2.0 ** torch.arange(0, _DIGIT_BITS * _DIGITS, _DIGIT_BITS).float()
        all_ones = float(self._factors.sum())
        self._offset = torch.tensor(_ZERO * all_ones + 0.5)  # makes numbers positive, so that truncation rounds them
        self._steps = all_ones * (_ZERO - 1) * (1 - 2.0**-20)  # so that no rounding leaves the digits' range

    def __call__(self, a: Tensor) -> Tensor:
        rows = a.reshape(-1, a.shape[-1]).float()
        if len(rows) == 1:  # as a model writes one token: small kernels between the matrices cost as much as these
            step = max(torch.linalg.vector_norm(rows, torch.inf).item(), _LEAST_ROW) / self._steps
            y = self._sums(torch.add(self._offset, rows, alpha=1 / step), step)
        else:
            steps = torch.linalg.vector_norm(rows, torch.inf, 1, True).clamp_(min=_LEAST_ROW).div_(self._steps)
            y = self._sums(torch.addcdiv(self._offset, rows, steps)).mul_(steps)
        return y.to(a.dtype).view(*a.shape[:-1], -1)

    def _sums(self, positive: Tensor, step: float = 1.0) -> Tensor:
        """Return products of the matrix with rows of positive integers, minus their offset."""
        whole = positive.to(torch.int32)
        digits = whole.view(torch.uint8).view(whole.numel(), 4).mT[:_DIGITS].reshape(-1, whole.shape[1])
        sums = _sums_of_codes(digits, step, self._codes, self._scales, self._zeros)
        return (self._factors @ sums.view(_DIGITS, -1)).view(len(whole), -1)


_LEAST_ROW = 2.0**-96  # its last digit counts a normal number


def _sums_of_codes(digits: Tensor, step: float, codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Return products of digits [R, K] and packed codes, times the step and scales [N], in fp32 [R, N]."""
    y: Tensor = torch.ops.onednn.qlinear_pointwise(
        digits, step, _ZERO, codes, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return y


@cache
def _adds_codes_exactly() -> bool:
    """Whether oneDNN's int8 products are exact: they saturate on processors that add two of them in 16 bits."""
    if not hasattr(torch.ops.onednn, "qlinear_pointwise") or not torch._C._has_mkldnn:
        return False
    digits = torch.tensor([[0, 255] * 256, [255] * 512, [0] * 512, [128, 129] * 256], dtype=torch.uint8)
    codes = torch.tensor([[127] * 512, [-128] * 512, [-128, 127] * 256, [1] * 512], dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(codes, [4, 512])
    sums = _sums_of_codes(digits, 1.0, packed, torch.ones(4), torch.zeros(4, dtype=torch.int64))
    return torch.equal(sums.long(), (digits.long() - _ZERO) @ codes.long().mT)


_INT4_BLOCKS = (32, 64, 128, 256)
_INT_COLUMNS = 32  # torch's kernel for int8 reads beyond the ends of rows of other sizes


def _bf16_kernel(matrices: Sequence[ConstantMatrix]) -> Product | None:
    """Return the product of rows [R, K] by torch's int8 or int4 kernel, which accepts only bf16 rows and scales."""
    first, scales, dtype = matrices[0], _scales(matrices), torch.bfloat16
    if first.dtype != dtype or not torch.equal(scales, scales.to(dtype).float()):
        return None
    if first.inputs % _INT_COLUMNS:
        return None
    if first.held.dtype.name == "int8" and scales.shape[1] == 1:
        whole, factors = _codes(matrices).contiguous(), scales[:, 0].to(dtype)
        return lambda rows: torch.ops.aten._weight_int8pack_mm(rows, whole, factors)
    block, rest = divmod(first.inputs, scales.shape[1])
    if first.held.dtype.name != "int4" or rest or block not in _INT4_BLOCKS or len(scales) % 16:
        return None
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(_codes(matrices).int() + 8, 1)
    pairs = torch.stack((scales.mT, torch.zeros_like(scales.mT)), -1).to(dtype).contiguous()  # the second is added
    return lambda rows: torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, block, pairs)


MANY_ROWS = {"int8": 24, "int4": 56}
"""Rows from which dequantizing the matrices is faster than a kernel that reads their codes; measured."""


class _FewRows:
    """A product with quantized matrices by a kernel for few rows; for many rows, they are dequantized each time."""

    def __init__(self, matrices: Sequence[ConstantMatrix], kernel: Product) -> None:
        self._matrices, self._kernel = matrices, kernel
        self._many = MANY_ROWS[matrices[0].held.dtype.name]

    def __call__(self, a: Tensor) -> Tensor:
        rows = a.reshape(-1, a.shape[-1])
        if len(rows) < self._many:
            return self._kernel(rows).view(*a.shape[:-1], -1)
        y = torch.cat([a @ matrix.dense().mT for matrix in self._matrices], -1)
        _release(self._matrices)
        return y
