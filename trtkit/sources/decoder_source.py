"""Decoder-only language models from a Hugging Face folder, a GGUF file, or a TensorRT-LLM checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError, reader, reading
from trtkit.sources import package_file
from trtkit.sources.checkpoint import Checkpoint
from trtkit.sources.gguf.config import family_of, hf_config
from trtkit.sources.gguf.file import KEPT, KEPT_EXPERTS, read_gguf
from trtkit.sources.gguf.tokenizer import gguf_tokenizer
from trtkit.sources.gguf.weights import hf_weights
from trtkit.sources.huggingface.stacked_experts import unstack_experts
from trtkit.sources.huggingface.wrapped_config import unwrap
from trtkit.sources.quantized import mxfp4
from trtkit.sources.quantized.layers import check_rest
from trtkit.sources.quantized.read import read_quantized
from trtkit.sources.quantized.trtllm import cache_scales, quantized_rank
from trtkit.sources.safetensors_file import has_usual_names, read_folder, read_json, read_safetensors
from trtkit.sources.tokenizer import CopiedTokenizer, folder_tokenizer
from trtkit.sources.trtllm import config as trtllm_config
from trtkit.sources.trtllm import weights as trtllm_weights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.arrays import Array
    from trtkit.config.schema import Source
    from trtkit.quantized_matrix import KvQuantization
    from trtkit.sources.checkpoint import StoredArray
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.tokenizer import TokenizerSource


@dataclass(frozen=True)
class DecoderSource:
    """A decoder-only language model: its Hugging Face config, weights by Hugging Face name, tokenizer.

    config: fields of a `config.json`. checkpoint: arrays, bf16 through ml_dtypes; accessing an item maps or decodes it.
    files: all files that were or will be read. where: the model's name in errors. quantized_by: the tool that quantized
    the checkpoint, whose quantized layers are `QuantizedMatrix`; empty if there are none. kv_cache: how its caches are
    quantized; None if they are not. note: what was kept in low precision and what was not, for the build's output.
    has_mxfp4: whether experts are in MXFP4. folder: the Hugging Face folder, if transformers reads it with the same
    result; None for quantized and other checkpoints.
    """

    config: Mapping[str, Any]
    checkpoint: Mapping[str, Array]
    files: tuple[Path, ...]
    where: str
    tokenizer: TokenizerSource
    quantized_by: str = ""
    kv_cache: KvQuantization | None = None
    note: str = ""
    has_mxfp4: bool = False
    folder: Path | None = None


def open_decoder_source(source: Source, *, keep_quantized: bool = False) -> DecoderSource:
    """Open the config, weights and tokenizer of a decoder-only LLM.

    keep_quantized: keep layers of GGUF files quantized.
    """
    if source.gguf is not None:
        return open_gguf(package_file.resolve(source.gguf, source.requires), keep_quantized=keep_quantized)
    if source.trtllm is not None:
        return open_trtllm(package_file.resolve(source.trtllm))
    assert source.hf is not None
    return open_hf_folder(package_file.resolve(str(package_file.hf_folder(source))))


def decoder_fields(source: Source) -> Mapping[str, object]:
    """Return what a GGUF file or a TensorRT-LLM checkpoint says of its model, as fields of a config.json.

    Those of a checkpoint are named as TensorRT-LLM does. Raises SourceError, ProblemsError.
    """
    if source.gguf is None:
        assert source.trtllm is not None
        return read_json(package_file.resolve(source.trtllm) / "config.json")
    path = package_file.resolve(source.gguf, source.requires)
    with reading(str(path)):
        file = read_gguf(path)
        return hf_config(file, family_of(file))


@reader
def open_hf_folder(folder: Path) -> DecoderSource:
    """Open a folder saved by transformers: config.json, safetensors, tokenizer files.

    Layers quantized by ModelOpt, AutoAWQ, GPTQ or compressed-tensors stay quantized. For a model with other parts
    around its language model (Gemma 3, LLaVA), the language model is opened. Raises SourceError for a folder without
    config.json or safetensors, and for damaged files.
    """
    path = _config_file(folder, "give a folder that transformers saved, or a model repository downloaded as a whole")
    arrays, weight_files = read_folder(folder)
    quantized = read_quantized(folder, read_json(path), arrays)
    config, arrays = unwrap(path, quantized.stored)
    arrays = unstack_experts(arrays, str(config.get("model_type", "")))
    config.pop("quantization_config", None)
    tokenizer = folder_tokenizer(folder)
    files = (path, *weight_files, *tokenizer.files)
    is_plain = quantized.method in ("", mxfp4.METHOD) and quantized.kv_cache is None and has_usual_names(folder)
    opened = DecoderSource(config, Checkpoint(arrays), files, str(path), tokenizer, folder=folder if is_plain else None)
    is_mxfp4 = quantized.method == mxfp4.METHOD
    return replace(opened, quantized_by=quantized.method, kv_cache=quantized.kv_cache, has_mxfp4=is_mxfp4)


@reader
def open_gguf(path: Path, *, keep_quantized: bool = False) -> DecoderSource:
    """Open a GGUF file: metadata as a Hugging Face config, tensors dequantized on reading, the tokenizer rebuilt.

    keep_quantized: linear layers and experts of supported types stay quantized. Raises SourceError for damaged files,
    for unsupported architectures, tensor types and tokenizers, and if no layer can stay quantized.
    """
    file = read_gguf(path)
    family = family_of(file)
    config = hf_config(file, family)
    weights = hf_weights(file, family, config, keep_quantized=keep_quantized)
    opened = DecoderSource(config, Checkpoint(weights), (path,), str(path), gguf_tokenizer(file))
    if not keep_quantized:
        return opened
    has_mxfp4 = any(tensor.type == "MXFP4" for tensor in file.tensors.values() if len(tensor.shape) == 3)
    return replace(opened, quantized_by="llama.cpp", note=_kept(file, weights), has_mxfp4=has_mxfp4)


def _kept(file: GgufFile, weights: Mapping[str, StoredArray]) -> str:
    """Describe how many matrices stay in low precision, and which types do not. Raises SourceError if none does."""
    kept = sum(array.is_quantized for array in weights.values())
    kinds = {2: KEPT, 3: KEPT_EXPERTS}
    others = {
        tensor.type
        for tensor in file.tensors.values()
        if tensor.type not in kinds.get(len(tensor.shape), (tensor.type,))
    }
    listed = ", ".join(sorted(others))
    if not kept:
        what = f"no linear layer is of a type that TensorRT has a form for: {', '.join(KEPT)}"
        raise SourceError(what, str(file.path), f"remove `quantize`: {listed or 'all'} are dequantized then")
    rest = f"; {listed} and tables dequantized" if listed else "; tables dequantized"
    return f"{kept} matrices kept as stored{rest}"


@reader
def open_trtllm(folder: Path) -> DecoderSource:
    """Open a TensorRT-LLM checkpoint: config.json and rank*.safetensors, with ranks merged. It has no tokenizer.

    Layers quantized by ModelOpt stay quantized. Raises SourceError for missing files and unsupported architectures,
    ProblemsError for layers that cannot be read.
    """
    path = _config_file(folder, "give the folder that holds config.json and rank*.safetensors")
    config = read_json(path)
    trtllm_config.check_config(config, str(path))
    tensors, stages = trtllm_config.tensor_size(config), trtllm_config.pipeline_size(config)
    files = [folder / f"rank{rank}.safetensors" for rank in range(tensors * stages)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        what = f"{len(missing)} of {len(files)} ranks are missing: {listed}"
        raise SourceError(what, str(folder), "copy the files of all ranks")
    stored = [read_safetensors(file) for file in files]
    ranks = [trtllm_weights.joined_stages(stored[rank::tensors], config, str(folder)) for rank in range(tensors)]
    kv_cache = cache_scales(ranks[0], config)
    weights = trtllm_weights.hf_weights([quantized_rank(rank, config) for rank in ranks], config, str(folder))
    check_rest(weights)
    fields = trtllm_config.hf_config(config, ranks[0])
    is_quantized = any(array.is_quantized for array in weights.values())
    formats = ("modelopt" if is_quantized else "", kv_cache)
    return DecoderSource(fields, Checkpoint(weights), (path, *files), str(path), CopiedTokenizer(), *formats)


def _config_file(folder: Path, fix: str) -> Path:
    """Return the folder's config.json. Raises SourceError if there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise SourceError("the folder has no `config.json`", str(folder), fix)
    return path
