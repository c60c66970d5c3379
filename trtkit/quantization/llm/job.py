"""The job that quantizes an LLM: with ModelOpt on transformers' model, int4 by trtkit; writes a ModelOpt checkpoint."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING

from trtkit.errors import QuantizeError
from trtkit.jobs.events import Phase, Steps
from trtkit.lora.merge import open_language_model
from trtkit.models.weights import stored_spec
from trtkit.quantization.jobs import QuantizedLlm
from trtkit.quantization.llm import calibration
from trtkit.quantization.llm.choice import choose, has_experts, is_streamed
from trtkit.quantization.llm.mixtures import write_mixture
from trtkit.quantization.llm.torch_model import quantize_torch_model
from trtkit.quantization.scoring.mix import Mixer, scoring_of
from trtkit.sources.huggingface.model import encoder
from trtkit.sources.quantized import mxfp4

if TYPE_CHECKING:
    from trtkit.config.quantize import QuantizeOptions
    from trtkit.jobs.job import JobContext
    from trtkit.quantization.jobs import QuantizeRequest
    from trtkit.quantization.scoring.report import Scores
    from trtkit.sources.decoder_source import DecoderSource


def quantize_llm(request: QuantizeRequest, context: JobContext) -> QuantizedLlm:
    """Quantize the LLM of `config` by its `quantize` section into `folder`: a checkpoint with its tokenizer.

    Raises ConfigError, QuantizeError, SourceError.
    """
    config, folder = request.config, request.folder
    steps = Steps(context.report)
    options = config.quantize
    assert options is not None
    context.report(Phase("read source"))
    opened = open_language_model(config.source)
    if opened.quantized_by not in ("", mxfp4.METHOD):  # exact in 16 bits: only the new rounding loses any
        what = f"the checkpoint is already quantized by {opened.quantized_by}"
        raise QuantizeError(what, opened.where, "remove `quantize`, or use the original, unquantized model")
    spec = stored_spec(opened.config, opened.where, opened.checkpoint)
    choice, scoring = choose(spec, options), scoring_of(request.scoring)
    if options.sparsity is not None and (has_experts(spec) or scoring is not None):
        what = "a mixture of experts cannot be pruned" if has_experts(spec) else "pruned models are not scored by layer"
        raise QuantizeError(what, "quantize.sparsity", "remove it, or leave out --sensitivity, --budget and --html")
    if has_experts(spec) and scoring is not None:
        fix = "leave out --sensitivity, --budget and --html"
        raise QuantizeError("layers of a mixture of experts are not scored one by one", opened.where, fix)
    if is_streamed(spec, choice, options):
        write_mixture(opened, choice, config, folder, steps)
        return QuantizedLlm(tuple(steps.done), len(choice.methods), choice.block)
    measures = choice.needs_data or scoring is not None or options.sparsity is not None
    texts = _texts(options, opened, is_needed=measures)
    steps.add("source", f"{len(choice.methods)} linear layers to quantize")
    make = partial(quantize_torch_model, opened, options, texts=texts, steps=steps)
    scores = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if scoring is None:
            quantized = make(choice)
        else:
            mixer = Mixer(make, texts, options.zero_points, steps)
            quantized, scores = mixer.mixed(choice, scoring)
            steps.add("sensitivity", _scored(scores))
        quantized.write(config, folder, steps)
    return QuantizedLlm(tuple(steps.done), len(quantized.choice.methods), choice.block, scores)


def _scored(scores: Scores) -> str:
    left = f"; {len(scores.kept)} of {len(scores.layers)} layers left" if scores.kept else ""
    return f"together {scores.loss:.4f} nats per token{left}"


def _texts(options: QuantizeOptions, opened: DecoderSource, *, is_needed: bool) -> list[list[int]]:
    """Return windows of the calibration text as tokens; none if nothing is measured."""
    if not is_needed and options.kv_cache is None:
        return []
    text = calibration.read_text(options.calibration)
    return calibration.windows(encoder(opened).encode(text), options.calibration)
