"""Let transformers round the inputs of linear layers as a quantized checkpoint asks and networks do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trtkit.quantization.scoring.emulation import round_blocks
from trtkit.quantization_methods import FORMATS
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.quantization_methods import Format
    from trtkit.sources.decoder_source import DecoderSource


def round_inputs(model: Any, opened: DecoderSource) -> set[Format]:
    """Put the rounding of inputs before a model's linear layers; return the formats that they are rounded to."""
    formats: set[Format] = set()
    for name in opened.checkpoint if opened.quantized_by else ():
        matrix = opened.checkpoint[name]
        if isinstance(matrix, QuantizedMatrix) and matrix.inputs is not None:
            model.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(_hook(matrix))
            formats.add(matrix.inputs.format)
    return formats


def _hook(matrix: QuantizedMatrix) -> Callable[..., Any]:
    """Return what rounds a layer's inputs [..., in], its factors before and taken back after."""
    inputs = matrix.inputs
    assert inputs is not None
    factors = torch.from_numpy(matrix.input_factors).float() if matrix.input_factors is not None else torch.ones(1)

    def hook(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounded(arguments[0] * factors, inputs) / factors, *arguments[1:])

    return hook


def rounded(x: torch.Tensor, inputs: QuantizedInputs) -> torch.Tensor:
    """Return x [..., in] rounded as `inputs` says."""
    if FORMATS[inputs.format].block:
        return round_blocks(x, inputs.format, inputs.scale)
    largest = FORMATS[inputs.format].largest
    scale = x.abs().amax(-1, keepdim=True).clamp(min=_TINY) / largest if inputs.is_per_token else inputs.scale
    steps = x / scale
    if inputs.format == "int8":
        return steps.round().clamp(-128, 127) * scale
    return steps.clamp(-largest, largest).to(torch.float8_e4m3fn).float() * scale


_TINY = 1e-12
