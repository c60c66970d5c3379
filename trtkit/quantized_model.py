"""What a quantized LLM holds: the form of each layer in low precision and of its caches, as sizes and types alone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from trtkit.dtypes import DTYPES
from trtkit.quantization_methods import FORMATS, CacheFormat, Format

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.dtypes import DType
    from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix

Json = dict[str, Any]
EXPERTS_PATH = ".moe.experts."
"""What names of experts' layers have."""
ExpertsRead = Literal["auto", "chosen", "all"]
"""Experts of a mixture that a step reads: those chosen, always all, or what costs least by their form."""


@dataclass(frozen=True)
class LayerForm:
    """How one linear layer is quantized.

    block: columns that share a scale; 0 for a scale a row, None for one of the whole matrix. inputs: their format,
    None if they stay; is_per_token: they are scaled while running. is_packed: the network computes numbers out of
    the codes of chosen experts, for which a GPU needs none of their types.
    """

    format: Format
    block: int | None = 0
    inputs: Format | None = None
    is_per_token: bool = False
    has_offsets: bool = False
    is_packed: bool = False

    def as_read(self, experts: ExpertsRead) -> LayerForm:
        """Return the form of an expert's layer if a step reads `experts`; see `reads_chosen_codes`."""
        return replace(self, is_packed=reads_chosen_codes(experts, self.format, changes_inputs=self.inputs is not None))

    @property
    def dtype(self) -> DType:
        """TensorRT's type of the codes."""
        return FORMATS[self.format].dtype

    def scale_shape(self, rows: int, size: int) -> tuple[int, ...]:
        """Return the shape of a matrix's scales: [], [out] or [out, blocks]."""
        if self.block is None:
            return ()
        return (rows, size // self.block) if self.block else (rows,)

    def size_bytes(self, rows: int, size: int, dtype: DType) -> int:
        """Return the bytes of a matrix in a network of `dtype`, in which scales and offsets are kept."""
        scales = math.prod(self.scale_shape(rows, size))
        scale_dtype = DTYPES["fp8"] if FORMATS[self.format].block and not self.is_packed else dtype
        offsets = dtype.size_bytes(scales) if self.has_offsets else 0
        return self.dtype.size_bytes(rows * size) + scale_dtype.size_bytes(scales) + offsets

    def matrix(self, rows: int, size: int, memory: Array) -> QuantizedMatrix:
        """Return a matrix of zeros in this form, its codes in `memory`, which is of bytes.

        Inputs that are scaled by block while running are written as fp8 by one scale: TensorRT-RTX 1.7.1 tells no
        shapes after such layers. Packed codes are written as integers.
        """
        import ml_dtypes
        import numpy as np

        from trtkit.quantized_matrix import QuantizedMatrix

        kind: Format = ("int4" if self.dtype.bits == 4 else "int8") if self.is_packed else self.format
        codes = memory[: self.dtype.size_bytes(rows * size)].reshape(rows, -1)
        if self.dtype.bits == 8:
            codes = codes.view(np.int8 if kind == "int8" else ml_dtypes.float8_e4m3fn)
        kinds = {"fp4": ml_dtypes.float8_e4m3fn, "mxfp8": ml_dtypes.float8_e8m0fnu}
        scales = np.ones(self.scale_shape(rows, size), kinds.get(kind, np.float32))
        offsets = np.zeros(scales.reshape(rows, -1).shape, np.float32) if self.has_offsets else None
        return QuantizedMatrix(kind, codes, scales, offsets=offsets, inputs=self._written_inputs())

    def _written_inputs(self) -> QuantizedInputs | None:
        """Return how inputs are written; a scale of their own keeps those of fp4 apart from others."""
        if self.inputs is None:
            return None
        from trtkit.quantized_matrix import QuantizedInputs

        if FORMATS[self.inputs].block:
            return QuantizedInputs("fp8", 2.0 if self.inputs == "fp4" else 1.0)
        return QuantizedInputs(self.inputs, is_per_token=self.is_per_token)


def reads_chosen_codes(experts: ExpertsRead, kind: Format, *, changes_inputs: bool) -> bool:
    """Whether a step copies the codes of chosen experts and computes their numbers, rather than read all experts.

    `auto`: of formats that TensorRT lacks. It multiplies others in low precision as they are, and a copy in 16 bits
    costs more than reading all experts if a step chooses many.
    """
    return not changes_inputs and (experts == "chosen" or (experts == "auto" and kind == "mxfp4"))


def form_of(matrix: QuantizedMatrix) -> LayerForm:
    """Return the form of one matrix."""
    block = matrix.block if matrix.scales.ndim else None
    inputs = matrix.inputs
    kind, is_per_token = (None, False) if inputs is None else (inputs.format, inputs.is_per_token)
    return LayerForm(matrix.format, block, kind, is_per_token, matrix.offsets is not None)


@dataclass(frozen=True)
class QuantizedModel:
    """Which layers are quantized, and how. layers: by path. kv_cache: format of an LLM's caches; None if they stay."""

    layers: dict[str, LayerForm]
    kv_cache: CacheFormat | None = None

    def as_read(self, experts: ExpertsRead) -> QuantizedModel:
        """Return what a network holds that reads `experts`: what TensorRT lacks a type for is packed or dequantized."""
        layers = {name: form.as_read(experts) if EXPERTS_PATH in name else form for name, form in self.layers.items()}
        held = {name: form for name, form in layers.items() if form.is_packed or form.format != "mxfp4"}
        return replace(self, layers=held)

    @property
    def types(self) -> tuple[str, ...]:
        layers = (form for form in self.layers.values() if not form.is_packed)
        names = {form.dtype.name for form in layers} | ({self.kv_cache} if self.kv_cache else set())
        return tuple(sorted(names))

    def to_json(self) -> Json:
        return {"layers": {name: asdict(form) for name, form in self.layers.items()}, "kv_cache": self.kv_cache}


def describe(model: QuantizedModel) -> str:
    """Return in words what is quantized, such as `14 layers int8, 2 layers int4 by 128; caches int8`."""
    counts: dict[str, int] = {}
    for form in model.layers.values():
        block = f" by {form.block}" if form.block else ""
        inputs = f" with {form.inputs} inputs" if form.inputs else ""
        counts[f"{form.format}{block}{inputs}"] = counts.get(f"{form.format}{block}{inputs}", 0) + 1
    layers = ", ".join(f"{count} layers {name}" for name, count in counts.items())
    caches = f"caches {model.kv_cache}" if model.kv_cache else ""
    return "; ".join(part for part in (layers, caches) if part)
