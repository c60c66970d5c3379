"""Let transformers round the inputs of linear layers as a quantized checkpoint asks and networks do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from trtkit.errors import SourceError
from trtkit.quantization.scoring.emulation import round_blocks
from trtkit.quantization_methods import FORMATS
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix
from trtkit.sources.huggingface.stacked_experts import joined_experts

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.quantization_methods import Format
    from trtkit.sources.decoder_source import DecoderSource

_Forward = Callable[..., object]
_Rounding = Callable[[torch.Tensor], torch.Tensor]
_EXPERT = re.compile(
    r"\.layers\.(?P<layer>\d+)\..*\bexperts\.(?P<expert>\d+)\.(?:gate_proj|up_proj|w1|w3|(?P<down>down_proj|w2))\."
)


def round_inputs(model: Any, opened: DecoderSource) -> set[Format]:
    """Put the rounding of inputs before a model's linear layers; return the formats that they are rounded to.

    Raises SourceError if transformers cannot round experts' inputs as the network does.
    """
    formats: set[Format] = set()
    experts: dict[re.Match[str], QuantizedMatrix] = {}
    for name in opened.checkpoint if opened.quantized_by else ():
        matrix = opened.checkpoint[name]
        if not isinstance(matrix, QuantizedMatrix) or matrix.inputs is None:
            continue
        formats.add(matrix.inputs.format)
        if match := _EXPERT.search(name):
            experts[match] = matrix
        else:
            model.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(_hook(matrix))
    if experts:
        _round_experts(model, experts)
    return formats


def _hook(matrix: QuantizedMatrix) -> _Forward:
    rounding = _rounding(matrix)

    def hook(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounding(arguments[0]), *arguments[1:])

    return hook


def _rounding(matrix: QuantizedMatrix) -> _Rounding:
    """Return what rounds a layer's inputs [..., in], its factors before and taken back after."""
    inputs = matrix.inputs
    assert inputs is not None
    factors = torch.from_numpy(matrix.input_factors).float() if matrix.input_factors is not None else torch.ones(1)
    return lambda x: rounded(x * factors, inputs) / factors


def _round_experts(model: Any, matrices: Mapping[re.Match[str], QuantizedMatrix]) -> None:
    """Round the inputs of experts, which transformers multiplies by parts of one array, each known by its memory."""
    joined = joined_experts(model)
    model.set_experts_implementation("eager")
    by_module: dict[int, dict[int, QuantizedMatrix]] = {}
    for match, matrix in matrices.items():
        number = int(match["layer"])
        if number not in joined:
            raise SourceError(
                f"transformers' {type(model).__name__} cannot round the inputs of single experts", match[0]
            )
        experts = joined[number]
        array = getattr(experts.module, "down_proj" if match["down"] else experts.first)
        by_pointer = by_module.setdefault(number, {})
        other = by_pointer.setdefault(array[int(match["expert"])].data_ptr(), matrix)
        if other.inputs != matrix.inputs or not _is_same(other.input_factors, matrix.input_factors):
            raise SourceError("gate and up of one expert round their inputs in two ways", match[0])
    for number, by_pointer in by_module.items():
        module = joined[number].module
        module.forward = _rounding_forward(
            module.forward, {pointer: _rounding(matrix) for pointer, matrix in by_pointer.items()}
        )


def _is_same(first: Array | None, second: Array | None) -> bool:
    return first is second if first is None or second is None else np.array_equal(first, second)


def _rounding_forward(forward: _Forward, rounding: Mapping[int, _Rounding]) -> _Forward:
    """Return a module's forward that rounds what is multiplied by some matrices. rounding: by their memory."""

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        round_input = rounding.get(weight.data_ptr())
        return _LINEAR(x if round_input is None else round_input(x), weight, bias)

    def run(*arguments: object, **named: object) -> object:
        with mock.patch.object(torch.nn.functional, "linear", linear):
            return forward(*arguments, **named)

    return run


def rounded(x: torch.Tensor, inputs: QuantizedInputs) -> torch.Tensor:
    """Return x [..., in] rounded as `inputs` says."""
    if FORMATS[inputs.format].block:
        return round_blocks(x, inputs.format, inputs.scale)
    largest = FORMATS[inputs.format].largest
    token = x.abs().amax(-1, keepdim=True).clamp(min=_TINY)
    scale = token / (inputs.steps or largest) if inputs.is_per_token else inputs.scale
    steps = x / scale
    if inputs.format == "int8":
        return steps.round().clamp(-128, 127) * scale
    return steps.clamp(-largest, largest).to(torch.float8_e4m3fn).float() * scale


_LINEAR = torch.nn.functional.linear
_TINY = 1e-12
