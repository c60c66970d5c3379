"""NVFP4 and MXFP8 on the CPU, where ModelOpt has no kernels: block rounding as in DynamicQuantize."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trtkit.quantization_methods import FORMATS

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from trtkit.quantization_methods import Format

_FP4_MAX, _FP8_MAX = FORMATS["fp4"].largest, FORMATS["fp8"].largest
_LEAST = 2.0**-127


def round_blocks(x: torch.Tensor, kind: Format, outer: float = 1.0) -> torch.Tensor:
    """Return x [..., in] in fp32, each block rounded with a scale from its largest magnitude.

    outer: the scale of fp4's block scales. Source:
    https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/DynamicQuantize.html
    """
    blocks = x.float().reshape(*x.shape[:-1], -1, FORMATS[kind].block)
    peak = blocks.abs().amax(-1, keepdim=True)
    if kind == "fp4":
        scales = _fp8(peak / _FP4_MAX / outer) * outer
        codes = _fp4(torch.where(scales == 0, torch.zeros_like(blocks), blocks / scales))
    else:
        exponents = torch.ceil(torch.log2((peak / _FP8_MAX).clamp(min=_LEAST)))
        scales = torch.exp2(exponents.clamp(-127, 127))
        codes = _fp8(blocks / scales)
    return (codes * scales).flatten(-2)


class EmulatedLayer:
    """A linear layer whose ModelOpt quantizers are disabled and emulated."""

    def __init__(self, module: Any, kind: Format) -> None:
        self._module, self._kind, self._original = module, kind, module.weight.data
        self._hook: RemovableHandle | None = None
        module.weight_quantizer.disable()
        module.input_quantizer.disable()

    def set(self, *, is_on: bool) -> None:
        """Turn rounding of weights and inputs on or off."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._module.weight.data = self._original
        if is_on:
            outer = self._outer(self._module.input_quantizer)
            self._hook = self._module.register_forward_pre_hook(
                lambda _, inputs: (round_blocks(inputs[0], self._kind, outer), *inputs[1:])
            )
            weights = round_blocks(self._original, self._kind, self._outer(self._module.weight_quantizer))
            self._module.weight.data = weights

    def give_back(self) -> None:
        """Enable ModelOpt's quantizers of the layer again."""
        self.set(is_on=False)
        self._module.weight_quantizer.enable()
        self._module.input_quantizer.enable()

    def _outer(self, quantizer: Any) -> float:
        """Return the scale of a tensor's block scales, which makes the largest one 448."""
        return float(quantizer.amax) / (_FP4_MAX * _FP8_MAX) if self._kind == "fp4" else 1.0


def _fp8(x: torch.Tensor) -> torch.Tensor:
    """Return the nearest e4m3 values, saturating."""
    return x.clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn).float()


def _fp4(x: torch.Tensor) -> torch.Tensor:
    """Return the nearest e2m1 values, saturating: steps of 0.5 below 2, 1 below 4, 2 below 6; ties to even."""
    size = x.abs().clamp(max=_FP4_MAX)
    step = 2.0 ** (torch.floor(torch.log2(size.clamp(min=1.0))) - 1)
    return (torch.round(size / step) * step).clamp(max=_FP4_MAX).copysign(x)
