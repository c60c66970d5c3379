"""A transformers language model quantized in memory: calibrate it, insert quantizers, round weights, write it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.pytorch_utils import Conv1D

from trtkit.dtypes import dtype_of
from trtkit.errors import QuantizeError
from trtkit.quantization.int4 import Rounding
from trtkit.quantization.llm import calibration, modelopt
from trtkit.quantization.llm.export import Extra, check_quantized, export, rename
from trtkit.quantization.llm.mixtures import is_experts
from trtkit.quantization.llm.sequential import quantize_int4
from trtkit.quantization.llm.sparsity import prune
from trtkit.quantization_methods import FORMATS, METHODS
from trtkit.quantized_matrix import KvQuantization
from trtkit.sources.huggingface.model import beyond_text, text_model

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trtkit.config.quantize import QuantizeOptions
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.events import Steps
    from trtkit.quantization.llm.calibration import CalibrationStatistics
    from trtkit.quantization.llm.choice import LinearLayer, MethodChoice
    from trtkit.quantization.llm.mixtures import ExpertLayer
    from trtkit.quantized_matrix import QuantizedMatrix
    from trtkit.sources.decoder_source import DecoderSource


@dataclass(frozen=True, eq=False)
class QuantizedTorchModel:
    """A transformers model with ModelOpt's quantizers. measured: results of calibration, if it ran.

    matrices: of layers that trtkit rounded itself, already in the model.
    originals: weights of these layers before.
    experts: where the model holds experts' layers.
    """

    model: Any
    opened: DecoderSource
    choice: MethodChoice
    measured: CalibrationStatistics | None
    matrices: dict[LinearLayer, QuantizedMatrix]
    originals: dict[LinearLayer, torch.Tensor]
    experts: dict[LinearLayer, ExpertLayer]

    def write(self, config: ModelConfig, folder: Path, steps: Steps) -> None:
        """Write the checkpoint: weights, config and tokenizer."""
        assert config.quantize is not None
        matrices = {layer.module: matrix for layer, matrix in self.matrices.items()}
        scales = _kv_cache(config.quantize, self.measured)
        attentions = {index: layer.module for index, layer in self.choice.caches.items()}
        inputs = modelopt.input_scales(self.model, self.choice)
        extra = Extra(scales, attentions, inputs, matrices, beyond_text(self.opened))
        export(self.model, folder, dtype_of(config.precision), extra)
        rename(folder, {expert.exported: layer.module for layer, expert in self.experts.items()})
        check_quantized(folder, [layer.module for layer in self.choice.methods])
        written = self.opened.tokenizer.write(folder)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        steps.add("export", f"{size / 2**20:.1f} MiB, {len(written)} tokenizer files")


def quantize_torch_model(
    opened: DecoderSource, options: QuantizeOptions, choice: MethodChoice, *, texts: list[list[int]], steps: Steps
) -> QuantizedTorchModel:
    """Return the model, calibrated and quantized."""
    model = text_model(opened)
    model.config.architectures = [type(model).__name__]
    plain = [layer for layer in choice.methods if not is_experts(layer)]
    make_plain(model, dict.fromkeys((*plain, *choice.pruned)))
    if choice.pruned:
        prune(model, choice.pruned, texts, steps.counted("prune", len(texts)))
        steps.add("prune", f"{len(choice.pruned)} layers to {options.sparsity} by SparseGPT")
    measured, matrices, modules = None, {}, dict(model.named_modules())
    experts: dict[LinearLayer, ExpertLayer] = {}
    rounded = choice.rounded_here
    if texts and (options.kv_cache is not None or (choice.needs_data and len(rounded) < len(choice.methods))):
        measured = calibration.measure(model, plain, choice.caches, texts, steps.counted("measure", len(texts)))
        steps.add("measure", f"{len(texts)} windows of {len(texts[0])} tokens")
    originals = {layer: modules[layer.module].weight.detach() for layer in rounded}
    if rounded:
        rounding = Rounding(choice.block, options.zero_points)
        needed = texts if choice.needs_data else []
        matrices = quantize_int4(model, choice, rounding, needed, steps.counted("blocks"))
    if len(rounded) < len(choice.methods):
        loop = partial(calibration.run, texts=texts, report=steps.counted("calibrate", len(texts)))
        experts = modelopt.quantize(model, options, choice, measured, loop)
    if choice.methods:
        steps.add("quantize", ", ".join(_described(choice)))
    return QuantizedTorchModel(model, opened, choice, measured, matrices, originals, experts)


def _kv_cache(options: QuantizeOptions, measured: CalibrationStatistics | None) -> KvQuantization | None:
    """Return the caches' scales.

    fp8 scales are at least 1: smaller ones gain nothing, since fp8 has its own exponent.
    """
    if options.kv_cache is None or measured is None:
        return None
    form = FORMATS[options.kv_cache]
    largest, least = form.largest, 1.0 if form.dtype.is_float else 1e-6
    scales = {
        layer: {cache: max(peak / largest, least) for cache, peak in peaks.items()}
        for layer, peaks in measured.caches.items()
    }
    return KvQuantization(options.kv_cache, scales)


def _described(choice: MethodChoice) -> list[str]:
    """Return texts with each method's number of layers."""
    counts: dict[str, int] = {}
    for method in choice.methods.values():
        counts[method] = counts.get(method, 0) + 1
    block = f" in blocks of {choice.block}" if choice.block else ""
    return [f"{count} layers {name}{block if METHODS[name].takes_block else ''}" for name, count in counts.items()]


def make_plain(model: Any, layers: Iterable[LinearLayer]) -> None:
    """Replace GPT-2's Conv1D and subclasses of Linear by torch's own Linear, which ModelOpt recognizes.

    Raises QuantizeError for modules that are not linear layers.
    """
    modules = dict(model.named_modules())
    for layer in layers:
        module = modules.get(layer.module)
        if isinstance(module, Conv1D):
            plain = _linear(module.weight.T.contiguous(), module.bias)
        elif isinstance(module, torch.nn.Linear):
            plain = module if type(module) is torch.nn.Linear else _linear(module.weight, module.bias)
        else:
            what = f"`{layer.module}` is not a linear layer in transformers"
            raise QuantizeError(what, layer.name, "exclude it: `quantize.exclude`")
        parent, _, name = layer.module.rpartition(".")
        setattr(modules[parent], name, plain)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    """Return a linear layer with weight [out, in]."""
    rows, columns = weight.shape
    linear = torch.nn.Linear(columns, rows, bias=bias is not None, device="meta")
    linear.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = torch.nn.Parameter(bias.detach(), requires_grad=False)
    return linear
