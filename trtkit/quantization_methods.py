"""THE table of quantization: one row per method, one row per format.

Everything that trtkit knows about a method follows from its row: the names in configs, help and shell completion, the
tables in docs/quantization*.md, the models and targets it supports, its share of a size budget, what `trtkit plan`
counts and what `trtkit verify` tolerates. To add a method, add its row; if no algorithm here sets its weights, name one
and write it: `quantization/int4.py` for blocks of 4 bits, `quantization/llm/modelopt.py` for what ModelOpt does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trtkit.dtypes import DTYPES, DType

Format = Literal["int8", "int4", "fp8", "mxfp8", "fp4", "mxfp4"]
CacheFormat = Literal["int8", "fp8"]
"""Formats of KV caches."""
Block = Literal[32, 64, 128]
"""Block sizes, in columns that share a scale, for formats that leave the choice."""
Use = Literal["llm", "experts", "vision", "written"]
"""Language models; mixtures of experts; models exported through ONNX; a hybrid's parts written with the network API."""
_ALL_USES: tuple[Use, ...] = ("llm", "experts", "vision", "written")
Algorithm = Literal["max", "smoothquant", "least_error", "nearest", "awq", "gptq"]
BLOCKS = (128, 64, 32)
LESS_LOSS = (
    "leave more products unquantized (`quantize.keep`, `quantize.exclude`), calibrate on more data, or use int8_wo"
)
"""Advice for a quantized vision model that loses too much."""
AS_STORED, NONE = "as_stored", "none"
"""Config values instead of a method: keep what a GGUF file holds; quantize nothing."""


@dataclass(frozen=True)
class FormatRow:
    """A number format of quantized values.

    type_name: of the codes, in `trtkit.dtypes`. largest: magnitude of the largest code. tolerance: relative RMS error
    of logits that rounding the inputs may cost. block: columns that share a scale, 0 if the format leaves the choice.
    scale_bits: of one scale per block. words: description of a number, for the docs.
    """

    type_name: str
    largest: float
    tolerance: float
    words: str
    block: int = 0
    scale_bits: int = 16

    @property
    def dtype(self) -> DType:
        """TensorRT's type for the codes."""
        return DTYPES[self.type_name]


FORMATS: dict[Format, FormatRow] = {
    "int8": FormatRow("int8", 127.0, 0.15, "8 bits"),
    "fp8": FormatRow("fp8", 448.0, 0.15, "e4m3"),
    "int4": FormatRow("int4", 7.0, 0.4, "4 bits"),
    "mxfp8": FormatRow("fp8", 448.0, 0.15, "e4m3", block=32, scale_bits=8),
    "fp4": FormatRow("fp4", 6.0, 0.4, "e2m1", block=16, scale_bits=8),
    "mxfp4": FormatRow(
        "fp4", 6.0, 0.4, "e2m1", block=32, scale_bits=8
    ),  # only as it is stored: TensorRT has no such type
}


@dataclass(frozen=True)
class Method:
    """One way to quantize linear layers.

    scales: what shares a scale in a language model's weights. rounds_inputs: whether activations are quantized too.
    needs_data: whether scales or rounding depend on calibration data; parts written with the network API scale their
    inputs at run time and need none. algorithm: what sets the weights. tolerance: relative RMS error against the fp32
    model that it may cost a vision model or a hybrid's part (docs/quantization-costs.md), with a margin. note: how it
    rounds, for the docs.
    """

    format: Format
    scales: Literal["matrix", "row", "block"]
    algorithm: Algorithm
    uses: tuple[Use, ...] = ("llm",)
    rounds_inputs: bool = False
    needs_data: bool = False
    tolerance: float = 0.0
    note: str = ""

    @property
    def dtype(self) -> DType:
        """TensorRT's type for the codes."""
        return FORMATS[self.format].dtype

    @property
    def takes_block(self) -> bool:
        """Whether weights share scales in blocks whose size a config may choose."""
        return self.scales == "block" and not FORMATS[self.format].block

    @property
    def is_modelopts(self) -> bool:
        """Whether ModelOpt quantizes such layers of a language model; trtkit rounds those of a chosen block size."""
        return not self.takes_block

    @property
    def is_fallback(self) -> bool:
        """Whether it may be the fallback for layers left by a budget: 8 bits, for matrices of any size."""
        return self.scales != "block"

    def block(self, chosen: int) -> int | None:
        """Return the columns that share a scale: 0 for a row's, None for the matrix's.

        chosen: the size if it takes one.
        """
        if self.scales == "block":
            return FORMATS[self.format].block or chosen
        return 0 if self.scales == "row" else None


# Recipes: https://github.com/NVIDIA/Model-Optimizer (modelopt_recipes). Names are those of ModelOpt and TensorRT-LLM
# (`--qformat`), where they have one.
METHODS: dict[str, Method] = {
    "int8": Method("int8", "row", "max", _ALL_USES, rounds_inputs=True, needs_data=True, tolerance=0.4),
    "fp8": Method("fp8", "matrix", "max", _ALL_USES, rounds_inputs=True, needs_data=True, tolerance=0.4),
    "int8_wo": Method("int8", "row", "max", _ALL_USES, tolerance=0.2, note="rounded to nearest"),
    "int4_wo": Method("int4", "block", "nearest", _ALL_USES, tolerance=0.4, note="rounded to nearest"),
    "mxfp8": Method("mxfp8", "block", "max", ("llm", "experts", "written"), rounds_inputs=True, tolerance=0.4),
    "int8_sq": Method("int8", "row", "smoothquant", rounds_inputs=True, needs_data=True, note="after SmoothQuant"),
    "int4_awq": Method("int4", "block", "awq", needs_data=True, note="after AWQ's scaling of input channels"),
    "int4_gptq": Method("int4", "block", "gptq", needs_data=True, note="by GPTQ: later columns compensate for errors"),
    "fp8_pc": Method("fp8", "row", "least_error", rounds_inputs=True, needs_data=True, note="chosen for least error"),
    "nvfp4": Method("fp4", "block", "max", ("llm", "experts"), rounds_inputs=True, needs_data=True),
}
"""By name, the most widely supported first."""


def methods_for(use: Use) -> tuple[str, ...]:
    """Return the names of the methods for a kind of model."""
    return tuple(name for name, method in METHODS.items() if use in method.uses)


def needs_data(name: str) -> bool:
    """Whether a config's method needs calibration data; `none` and `as_stored` do not."""
    return name in METHODS and METHODS[name].needs_data


def tolerance_of(name: str) -> float:
    """Return the tolerance of a config's method; 0 for `none` and `as_stored`."""
    return METHODS[name].tolerance if name in METHODS else 0.0


def weight_bits(name: Format, block: int = 0, *, has_offsets: bool = False) -> float:
    """Return the bits per weight with its share of block scales and offsets; those of rows and matrices do not count.

    block: columns that share a scale, in formats that leave the choice.
    """
    row = FORMATS[name]
    block = row.block or block
    return row.dtype.bits + (row.scale_bits * (2 if has_offsets else 1) / block if block else 0)


def largest_block(sizes: Sequence[int]) -> int:
    """Return the largest block of columns that divides all sizes; 0 if none does."""
    return next((block for block in BLOCKS if all(size % block == 0 for size in sizes)), 0)
