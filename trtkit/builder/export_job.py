"""The job that writes a language model as a TensorRT-LLM checkpoint: config.json and the weights of each rank."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtkit.builder.decoders import open_config_source
from trtkit.builder.jobs import Exported
from trtkit.builder.trtllm_config import architecture_of, check_expressed, checkpoint_config, shares_table
from trtkit.dtypes import dtype_of
from trtkit.errors import Problem, ProblemsError, SourceError, TrtkitError
from trtkit.jobs.events import Phase, Progress, Steps
from trtkit.models.parallel import check_grid, grid_of
from trtkit.models.weights import find_weights, model_weights, stored_spec
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.quantized.trtllm import algorithm_of, cache_tensors, quantized_tensors, with_scale
from trtkit.sources.safetensors_file import numpy_type, write_safetensors
from trtkit.sources.trtllm.families import family_of
from trtkit.sources.trtllm.ranks import rank_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trtkit.arrays import Array
    from trtkit.builder.jobs import ExportRequest
    from trtkit.jobs.job import JobContext
    from trtkit.models.spec import DecoderSpec
    from trtkit.quantized_matrix import QuantizedMatrix
    from trtkit.sources.decoder_source import DecoderSource
    from trtkit.sources.trtllm.fields import Fields

Arrays = dict[str, StoredArray]
_SHOWN_PROBLEMS = 8
_LAYERS = "transformer.layers."
_FP32 = "mlp.router."
"""Modules that TensorRT-LLM keeps in fp32."""


def export(request: ExportRequest, context: JobContext) -> Exported:
    """Write the LLM of `config` into `folder`.

    Raises ConfigError, SourceError, ProblemsError for what it cannot express.
    """
    steps, config = Steps(context.report), request.config
    context.report(Phase("read source"))
    opened = open_config_source(config)
    architecture_of(str(opened.config.get("model_type")), opened.where)
    spec, grid = stored_spec(opened.config, opened.where, opened.checkpoint), grid_of(config)
    check_grid(spec, grid, "a checkpoint of these ranks")
    if len(spec.layers) % grid.pipeline:
        what = f"{len(spec.layers)} layers are not a multiple of {grid.pipeline} stages"
        raise SourceError(what, opened.where, "choose another `parallel.pipeline`")
    dtype = dtype_of(config.precision).numpy
    fields = checkpoint_config(opened.config, spec, dtype, grid, opened.where)
    weights = _hf_weights(opened, spec, has_head=not shares_table(spec, grid))
    weights = _with_shared_scales(weights, fields, requantize=request.requantize)
    ranks = [rank_arrays(weights, fields, rank) for rank in range(grid.ranks)]
    check_expressed(fields, spec, {name for rank in ranks for name in rank}, opened.where)
    steps.add("source", f"{len(weights)} weights of `{fields['architecture']}`")
    context.report(Phase("write ranks"))
    quantization = _quantization(ranks, opened)
    has_factors = bool(quantization.get("pre_quant_scale")) or quantization["quant_algo"] == "W8A8_SQ_PER_CHANNEL"
    tensors = [_tensors(rank, dtype, has_factors=has_factors) for rank in ranks]
    if opened.kv_cache is not None:
        count = len(spec.layers) // grid.pipeline
        for rank, arrays in enumerate(tensors):
            stage = rank // grid.tensor
            scales = cache_tensors(opened.kv_cache, range(stage * count, (stage + 1) * count))
            arrays |= {name: _held(array) for name, array in scales.items()}
    _write(tensors, request.folder, context)
    text = json.dumps({**fields, "quantization": quantization}, indent=4) + "\n"
    (request.folder / "config.json").write_text(text, encoding="utf-8")
    kind = quantization["quant_algo"] or dtype
    steps.add("checkpoint", f"{len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'}, {kind}")
    return Exported(tuple(steps.done), fields["architecture"], kind, len(ranks))


def _hf_weights(opened: DecoderSource, spec: DecoderSpec, *, has_head: bool) -> Arrays:
    """Return the model's weights by transformers' names; a tied embedding also as the head, if `has_head`."""
    stored_weights = find_weights(spec, opened.checkpoint, opened.where)
    weights: Arrays = {}
    for weight in model_weights(spec):
        if weight.path in stored_weights:
            stored = stored_weights.stored(weight.path)
            assert isinstance(stored, StoredArray)
            weights[weight.name] = stored
    head = f"{spec.names['lm_head']}.weight"
    if spec.head.is_tied and has_head:
        weights[head] = weights[f"{spec.names['embedding']}.weight"]
    return weights


def _with_shared_scales(weights: Arrays, fields: Fields, *, requantize: bool) -> Arrays:
    """Return weights in which the fp8 queries, keys and values of a layer share one scale, since they are joined.

    requantize: whether to round those of different scales to the largest; if not, raises ProblemsError.
    """
    family, problems, rounded = family_of(fields), [], Arrays()
    for layer in range(fields["num_hidden_layers"]):
        names = [f"{family.layers}.{layer}.{module}.weight" for module in family.qkv]
        if not all(name in weights and weights[name].is_quantized for name in names):
            continue
        matrices = [weights[name].matrix() for name in names]
        pairs = [
            (float(one.scales), one.inputs.scale)
            for one in matrices
            if one.format == "fp8" and not one.scales.ndim and one.inputs is not None
        ]
        if len(pairs) < len(names) or len(set(pairs)) < 2:
            continue
        scale, inputs = (max(values) for values in zip(*pairs, strict=True))
        what = "queries, keys and values have scales of their own, and TensorRT-LLM joins them under one"
        problems.append(Problem(what, names[0].rpartition(".q")[0] or names[0]))
        for name in names:
            read = partial(_rescaled, weights[name], np.float32(scale), inputs)
            rounded[name] = StoredArray(weights[name].shape, read, is_quantized=True)
    if problems and not requantize:
        fix = "add `--requantize`, which rounds their codes again to the largest scale"
        raise ProblemsError("fp8 layers that a TensorRT-LLM checkpoint cannot hold", problems[:_SHOWN_PROBLEMS], fix)
    return weights | rounded


def _rescaled(stored: StoredArray, scale: np.float32, inputs: float) -> Array:
    matrix: object = with_scale(stored.matrix(), scale, inputs)
    return matrix  # type: ignore[return-value]


def _quantization(ranks: Sequence[Arrays], opened: DecoderSource) -> Fields:
    """Return the config's `quantization` section. Raises ProblemsError for layers that the format cannot express."""
    problems, algorithms, blocks, has_factors = list[Problem](), set[str](), set[int](), False
    for name, matrix in _matrices(ranks, problems):
        try:
            algorithms.add(algorithm_of(matrix))
        except TrtkitError as error:
            problems.append(Problem(error.what, name, error.fix))
        blocks.add(matrix.block)
        has_factors = has_factors or matrix.input_factors is not None
    plain = [{module for name in rank if (module := _plain_linear(name, rank[name]))} for rank in ranks]
    if len(algorithms) > 1:
        problems.append(
            Problem(f"layers have {len(algorithms)} kinds of quantization: {', '.join(sorted(algorithms))}")
        )
    if algorithms and any(one != plain[0] for one in plain):
        problems.append(Problem("pipeline stages leave different layers unquantized"))
    if problems:
        raise ProblemsError("quantized layers that a TensorRT-LLM checkpoint cannot hold", problems[:_SHOWN_PROBLEMS])
    caches = None if opened.kv_cache is None else opened.kv_cache.format.upper()
    if not algorithms:
        return {"quant_algo": None, "kv_cache_quant_algo": caches}
    algorithm = algorithms.pop()
    quantization: dict[str, object] = {"quant_algo": algorithm, "kv_cache_quant_algo": caches}
    if algorithm in ("W4A16_AWQ", "NVFP4"):
        if len(blocks) > 1:
            raise SourceError(f"layers have blocks of {len(blocks)} sizes", opened.where, "quantize with one `--block`")
        quantization["group_size"] = blocks.pop()
    if algorithm == "W4A16_AWQ":
        quantization |= {"has_zero_point": False, "pre_quant_scale": has_factors}
    return quantization | {"exclude_modules": sorted({"lm_head", *plain[0]})}


def _matrices(ranks: Sequence[Arrays], problems: list[Problem]) -> Iterator[tuple[str, QuantizedMatrix]]:
    """Yield quantized layers, read one at a time; append a problem for each that the format cannot express."""
    for rank in ranks:
        for name, stored in rank.items():
            if not stored.is_quantized:
                continue
            if not name.startswith(_LAYERS) or len(stored.shape) != 2:
                problems.append(Problem("only linear layers may be quantized, and no experts", name))
                continue
            try:
                matrix = stored.matrix()
            except TrtkitError as error:
                what = f"its parts, which TensorRT-LLM joins, are quantized differently: {error.what}"
                problems.append(Problem(what, name, "quantize the original model by `trtkit quantize`"))
                continue
            yield name, matrix


def _plain_linear(name: str, stored: StoredArray) -> str:
    """Return the module name of an unquantized linear layer; empty for anything else."""
    is_linear = name.startswith(_LAYERS) and name.endswith(".weight") and len(stored.shape) == 2
    is_plain = is_linear and not stored.is_quantized and not name.endswith("_layernorm.weight")
    return name.removesuffix(".weight") if is_plain else ""


def _tensors(rank: Mapping[str, StoredArray], dtype: str, *, has_factors: bool) -> Arrays:
    """Return the tensors of a rank's file: weights in `dtype`, quantized layers as their components."""
    tensors: Arrays = {}
    for name, stored in rank.items():
        if not stored.is_quantized:
            kept = "float32" if _FP32 in name else dtype
            tensors[name] = StoredArray(stored.shape, partial(_cast, name, stored, kept), dtype=kept)
            continue
        encode = partial(_encoded, stored, dtype, has_factors=has_factors)
        for suffix, array in encode().items():
            read = partial(_picked, encode, suffix)
            tensors[f"{name.removesuffix('weight')}{suffix}"] = StoredArray(array.shape, read, dtype=array.dtype.name)
    return tensors


def _encoded(stored: StoredArray, dtype: str, *, has_factors: bool) -> dict[str, Array]:
    return quantized_tensors(stored.matrix(), numpy_type(dtype), has_factors=has_factors)


def _picked(encode: Callable[[], dict[str, Array]], suffix: str) -> Array:
    return encode()[suffix]


def _held(array: Array) -> StoredArray:
    return StoredArray(array.shape, lambda: array, dtype=array.dtype.name)


def _cast(name: str, stored: StoredArray, dtype: str) -> Array:
    """Return an array cast to another type. Raises SourceError for NaN and for values out of range."""
    array = stored.read()
    with np.errstate(over="ignore"):  # it is an error below
        cast = array.astype(numpy_type(dtype), copy=False)
    if np.isfinite(cast).all():
        return cast
    if np.isfinite(array).all():
        raise SourceError("numbers exceed the range of fp16", name, "export in bf16: `--precision bf16`")
    raise SourceError("numbers are NaN or infinite", name, "take the weights from their origin again")


def _write(ranks: Sequence[Arrays], folder: Path, context: JobContext) -> None:
    """Write each rank's file and report the progress over all of them."""
    sizes = [sum(_bytes(array) for array in arrays.values()) for arrays in ranks]
    for rank, arrays in enumerate(ranks):
        file, before = f"rank{rank}.safetensors", sum(sizes[:rank])
        report = partial(_report, context, before, sum(sizes), file)
        write_safetensors(folder / file, arrays, report)


def _report(context: JobContext, before: int, total: int, file: str, done: int) -> None:
    context.report(Progress("write ranks", (before + done) >> 20, total >> 20, f"{file}, MiB"))


def _bytes(array: StoredArray) -> int:
    return math.prod(array.shape) * numpy_type(array.dtype).itemsize
