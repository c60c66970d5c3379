"""Decoder-only language models from a Hugging Face folder, a GGUF file, or a TensorRT-LLM checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.sources.checkpoint import Checkpoint
from trtkit.sources.gguf_config import family_of, hf_config
from trtkit.sources.gguf_file import read_gguf
from trtkit.sources.gguf_tokenizer import gguf_tokenizer
from trtkit.sources.gguf_weights import hf_weights
from trtkit.sources.safetensors_folder import read_folder, read_json
from trtkit.sources.tokenizer import folder_tokenizer
from trtkit.sources.wrapped_config import unwrap

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.sources.checkpoint import Array
    from trtkit.sources.tokenizer import Tokenizer


@dataclass(frozen=True)
class DecoderSource:
    """A decoder-only language model: its Hugging Face config, weights by Hugging Face name, tokenizer.

    config: fields of a `config.json`. checkpoint: arrays, bf16 through ml_dtypes; reading an item maps or decodes it.
    files: all that was or will be read. where: what errors call the model.
    """

    config: Mapping[str, Any]
    checkpoint: Mapping[str, Array]
    files: tuple[Path, ...]
    where: str
    tokenizer: Tokenizer


def open_hf_folder(folder: Path) -> DecoderSource:
    """Open a folder that transformers saved: config.json, safetensors, tokenizer files.

    Of a model with other parts around its language model (Gemma 3, LLaVA), the language model is opened.
    Raises SourceError for a folder without config.json or safetensors, and for files that are damaged.
    """
    path = folder / "config.json"
    if not path.is_file():
        fix = "give a folder that transformers saved, or a model repository downloaded as a whole"
        raise SourceError("the folder has no `config.json`", str(folder), fix)
    arrays, weight_files = read_folder(folder)
    config, arrays = unwrap(read_json(path), arrays, str(path))
    tokenizer = folder_tokenizer(folder)
    return DecoderSource(config, Checkpoint(arrays), (path, *weight_files, *tokenizer.files), str(path), tokenizer)


def open_gguf(path: Path) -> DecoderSource:
    """Open a GGUF file: metadata as a Hugging Face config, tensors dequantized as they are read, the tokenizer rebuilt.

    Raises SourceError for damaged files, and for architectures, tensor types and tokenizers that are not supported.
    """
    file = read_gguf(path)
    family = family_of(file)
    checkpoint = Checkpoint(hf_weights(file, family))
    return DecoderSource(hf_config(file, family), checkpoint, (path,), str(path), gguf_tokenizer(file))


def open_trtllm(folder: Path) -> DecoderSource:
    """Open a TensorRT-LLM checkpoint: config.json and rank*.safetensors, ranks merged. It has no tokenizer."""
    raise SourceError("TensorRT-LLM checkpoints are not supported yet", str(folder))
