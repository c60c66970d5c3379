"""Write the layers beside this file, by the libraries that define their formats.

The libraries are unpacked sources, not installed: their packages want a transformers of years ago or a GPU, the modules
that pack and dequantize do not. Run: python make.py AUTOAWQ_FOLDER AUTOGPTQ_FOLDER GPTQMODEL_FOLDER
(autoawq 0.2.9, auto-gptq 0.7.1 and gptqmodel 7.7.0, the last with the small packages it imports).
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
IN, OUT, GROUP = 96, 64, 32


def packages(folder: Path, *names: str) -> None:
    """Make packages whose modules are importable without running their `__init__`."""
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
        if name == "gptqmodel":  # what its modules take from the package
            module.DEBUG_ON = False  # type: ignore[attr-defined]
            module.__getattr__ = nothing  # type: ignore[method-assign]


def nothing(name: str) -> types.SimpleNamespace:
    """Return an empty object for a name of a package that was not run."""
    if name.startswith("__"):
        raise AttributeError(name)
    return types.SimpleNamespace()


def rounded(weight: torch.Tensor, bits: int, *, symmetric: bool, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zero points [out, groups] of the weight."""
    blocks, top = weight.float().reshape(OUT, -1, group), 2**bits - 1
    if symmetric:
        scales = 2 * blocks.abs().amax(-1) / top
        return scales.half(), torch.full_like(scales, 2 ** (bits - 1))
    low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    scales = (high - low) / top
    return scales.half(), (-low / scales).round().clamp(1, top)


def awq() -> dict[str, torch.Tensor]:
    """Return a layer of AutoAWQ, and its weight [in, out] as AutoAWQ dequantizes it."""
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    linear = torch.nn.Linear(IN, OUT, bias=False).half()
    scales, zeros = rounded(linear.weight, 4, symmetric=False, group=GROUP)
    made = WQLinear_GEMM.from_linear(linear, 4, GROUP, scales=scales.t().contiguous(), zeros=zeros.t().contiguous())
    weight = dequantize_gemm(made.qweight, made.qzeros, made.scales, 4, GROUP)
    return {"qweight": made.qweight, "qzeros": made.qzeros, "scales": made.scales, "dequantized": weight}


def gptq(bits: int, *, symmetric: bool, is_ordered: bool, group: int = GROUP) -> dict[str, torch.Tensor]:
    """Return a layer of AutoGPTQ, and its weight [in, out]: what it gives for unit vectors."""
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear

    linear = torch.nn.Linear(IN, OUT, bias=False).half()
    order = torch.arange(IN) if is_ordered else torch.randperm(IN)
    groups = torch.empty(IN, dtype=torch.int32)
    groups[order] = torch.arange(IN, dtype=torch.int32) // group
    scales, zeros = rounded(linear.weight[:, order], bits, symmetric=symmetric, group=group)
    made = QuantLinear(bits, group, IN, OUT, bias=False)
    made.pack(linear, scales.float(), zeros, groups)
    state = {name: getattr(made, name).contiguous() for name in ("qweight", "qzeros", "scales", "g_idx")}
    made.scales = made.scales.half()
    return state | {"dequantized": made(torch.eye(IN).half())}


def gptq_v2(bits: int) -> dict[str, torch.Tensor]:
    """Return a layer of GPTQModel in format `gptq_v2`, and its weight [in, out] as GPTQModel dequantizes it."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    linear = torch.nn.Linear(IN, OUT, bias=False).half()
    scales, zeros = rounded(linear.weight, bits, symmetric=False, group=GROUP)
    groups = torch.arange(IN, dtype=torch.int32) // GROUP
    made = TorchLinear(bits, GROUP, sym=False, desc_act=False, in_features=IN, out_features=OUT)
    made.pack_original(linear, scales, zeros, groups)
    made.qzero_format(format=2)
    made.post_init()
    state = {name: getattr(made, name).contiguous() for name in ("qweight", "qzeros", "scales", "g_idx")}
    return state | {"dequantized": made.eval().dequantize_weight()}


def main() -> None:
    """Write all files."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    awq_folder, gptq_folder, v2_folder = (Path(path) for path in sys.argv[1:4])
    packages(v2_folder, "gptqmodel", "gptqmodel.models")
    packages(awq_folder, "awq", "awq.modules", "awq.modules.linear", "awq.utils")
    packages(gptq_folder, "auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear")
    layers = {
        "awq": awq(),
        "gptq_4bit": gptq(4, symmetric=True, is_ordered=True),
        "gptq_4bit_asymmetric": gptq(4, symmetric=False, is_ordered=True),
        "gptq_4bit_act_order": gptq(4, symmetric=False, is_ordered=False),
        "gptq_4bit_one_group": gptq(4, symmetric=True, is_ordered=True, group=IN),
        "gptq_v2_4bit": gptq_v2(4),
        "gptq_v2_8bit": gptq_v2(8),
        "gptq_8bit": gptq(8, symmetric=False, is_ordered=True),
        "gptq_8bit_act_order": gptq(8, symmetric=True, is_ordered=False),
    }
    for name, tensors in layers.items():
        save_file({key: value.detach().clone() for key, value in tensors.items()}, HERE / f"{name}.safetensors")


if __name__ == "__main__":
    main()
