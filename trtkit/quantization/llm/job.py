"""The job that quantizes an LLM: ModelOpt on transformers' model, int4 by trtkit, written as ModelOpt's checkpoints."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import dtype_of
from trtkit.errors import QuantizeError
from trtkit.jobs.events import Phase
from trtkit.jobs.steps import Steps
from trtkit.models.weights import stored_spec
from trtkit.quantization.int4 import Rounding
from trtkit.quantization.jobs import QuantizedLlm
from trtkit.quantization.llm import calibration, modelopt
from trtkit.quantization.llm.choice import Choice, choose, has_experts
from trtkit.quantization.llm.export import Extra, check_quantized, export
from trtkit.quantization.llm.linear import make_plain
from trtkit.quantization.llm.mixtures import write_mixture
from trtkit.quantization.llm.sequential import quantize_int4
from trtkit.quantization.scoring.mix import Mixer, scoring_of
from trtkit.quantization_methods import FORMATS, METHODS
from trtkit.quantized_matrix import KvQuantization
from trtkit.sources.decoder_source import open_decoder_source
from trtkit.sources.huggingface.model import beyond_text, encoder, text_model

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from trtkit.config.quantize import QuantizeOptions
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.job import Context
    from trtkit.quantization.jobs import QuantizeRequest
    from trtkit.quantization.llm.calibration import Measured
    from trtkit.quantization.llm.choice import Layer
    from trtkit.quantization.scoring.sensitivity import Scores
    from trtkit.quantized_matrix import QuantizedMatrix
    from trtkit.sources.decoder_source import DecoderSource

Json = dict[str, Any]


def quantize_llm(request: QuantizeRequest, context: Context) -> QuantizedLlm:
    """Quantize the LLM of `config` as its `quantize` section asks, into `folder`: a checkpoint with its tokenizer.

    Raises ConfigError, QuantizeError, SourceError.
    """
    config, folder = request.config, request.folder
    steps = Steps(context.report)
    assert config.quantize is not None
    context.report(Phase("read source"))
    opened = open_decoder_source(config.source)
    if opened.quantized_by:
        what = f"the checkpoint was quantized by {opened.quantized_by} already"
        raise QuantizeError(what, opened.where, "remove `quantize`, or give the model as it was before")
    spec = stored_spec(opened.config, opened.where, opened.checkpoint)
    choice, scoring = choose(spec, config.quantize), scoring_of(request.scoring)
    if has_experts(spec):
        if scoring is not None:
            fix = "leave out --sensitivity, --budget and --html"
            raise QuantizeError("layers of a mixture of experts are not scored one by one", opened.where, fix)
        write_mixture(opened, choice, config, folder, steps)
        return QuantizedLlm(tuple(steps.done), len(choice.methods), choice.block)
    texts = _texts(config.quantize, opened, is_needed=choice.needs_data or scoring is not None)
    steps.add("source", f"{len(choice.methods)} linear layers to quantize")
    make = partial(quantized_model, opened, config.quantize, texts=texts, steps=steps)
    scores = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if scoring is None:
            quantized = make(choice)
        else:
            mixer = Mixer(make, texts, config.quantize.zero_points, steps)
            quantized, scores = mixer.mixed(choice, scoring)
            steps.add("sensitivity", _scored(scores))
        quantized.write(config, folder, steps)
    sensitivity = None if scores is None else scores.to_json()
    return QuantizedLlm(tuple(steps.done), len(quantized.choice.methods), choice.block, sensitivity)


def _scored(scores: Scores) -> str:
    """Return what was found in a line."""
    left = f"; {len(scores.kept)} of {len(scores.losses)} layers left" if scores.kept else ""
    return f"together {scores.loss:.4f} nats a token{left}"


@dataclass(frozen=True, eq=False)
class QuantizedModel:
    """A model of transformers with ModelOpt's quantizers in it. measured: what calibration found, if anything.

    matrices: of the layers that trtkit rounded itself, with which the model computes; originals: their weights before.
    """

    model: Any
    opened: DecoderSource
    choice: Choice
    measured: Measured | None
    matrices: dict[Layer, QuantizedMatrix]
    originals: dict[Layer, torch.Tensor]

    def write(self, config: ModelConfig, folder: Path, steps: Steps) -> None:
        """Write the checkpoint: weights, config and tokenizer."""
        assert config.quantize is not None
        matrices = {layer.module: matrix for layer, matrix in self.matrices.items()}
        scales = _kv_cache(config.quantize, self.measured)
        extra = Extra(scales, modelopt.input_scales(self.model, self.choice), matrices, beyond_text(self.opened))
        export(self.model, folder, dtype_of(config.precision), extra)
        check_quantized(folder, [layer.module for layer in self.choice.methods])
        written = self.opened.tokenizer.write(folder)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        steps.add("export", f"{size / 2**20:.1f} MiB, {len(written)} tokenizer files")


def quantized_model(
    opened: DecoderSource, options: QuantizeOptions, choice: Choice, *, texts: list[list[int]], steps: Steps
) -> QuantizedModel:
    """Return the model, measured and quantized."""
    model = text_model(opened)
    model.config.architectures = [type(model).__name__]
    make_plain(model, choice.methods)
    measured, matrices, modules = None, {}, dict(model.named_modules())
    own = choice.rounded_here
    if texts and (options.kv_cache is not None or (choice.needs_data and len(own) < len(choice.methods))):
        measured = calibration.measure(model, list(choice.methods), texts, steps.counted("measure", len(texts)))
        steps.add("measure", f"{len(texts)} windows of {len(texts[0])} tokens")
    originals = {layer: modules[layer.module].weight.detach() for layer in own}
    if own:
        rounding = Rounding(choice.block, options.zero_points)
        needed = texts if choice.needs_data else []
        matrices = quantize_int4(model, choice, rounding, needed, steps.counted("blocks"))
    if len(own) < len(choice.methods):
        loop = partial(calibration.run, texts=texts, report=steps.counted("calibrate", len(texts)))
        modelopt.quantize(model, options, choice, measured, loop)
    if choice.methods:
        steps.add("quantize", ", ".join(_described(choice)))
    return QuantizedModel(model, opened, choice, measured, matrices, originals)


def _texts(options: QuantizeOptions, opened: DecoderSource, *, is_needed: bool) -> list[list[int]]:
    """Return windows of the calibration text as tokens; none where nothing is to be measured."""
    if not is_needed and options.kv_cache is None:
        return []
    text = calibration.read_text(options.calibration)
    return calibration.windows(encoder(opened).encode(text), options.calibration)


def _kv_cache(options: QuantizeOptions, measured: Measured | None) -> KvQuantization | None:
    """Return the caches' scales. An fp8 scale below 1 gains nothing: its numbers have an exponent of their own."""
    if options.kv_cache is None or measured is None:
        return None
    form = FORMATS[options.kv_cache]
    largest, least = form.largest, 1.0 if form.dtype.is_float else 1e-6
    keys, values = (tuple(max(peak / largest, least) for peak in peaks) for peaks in (measured.keys, measured.values))
    return KvQuantization(options.kv_cache, keys, values)


def _described(choice: Choice) -> list[str]:
    """Return each method with how many layers it has."""
    counts: dict[str, int] = {}
    for method in choice.methods.values():
        counts[method] = counts.get(method, 0) + 1
    block = f" in blocks of {choice.block}" if choice.block else ""
    return [f"{count} layers {name}{block if METHODS[name].takes_block else ''}" for name, count in counts.items()]
