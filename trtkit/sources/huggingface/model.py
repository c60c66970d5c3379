"""transformers' own model and tokenizer, built from a source."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.huggingface import auto_classes
from trtkit.sources.huggingface.folder import load_folder, load_weights, open_config
from trtkit.sources.huggingface.stacked_experts import stack_experts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from trtkit.sources.decoder_source import DecoderSource


def causal_lm(opened: DecoderSource, unused: Sequence[str] = ()) -> Any:
    """Return a causal language model of transformers in fp32 on the CPU, ready to run, with weights dequantized.

    transformers loads its own folders itself, so that none of trtkit's reading affects the model; if the model has
    other parts around it, they are loaded too. If it cannot read a folder with the same result, the weights come from
    `opened`. unused: name prefixes of weights that it may ignore; those of published sizes are known. Raises
    SourceError if transformers does not know the model or the weights do not fit it.
    """
    import transformers

    patterns = [f"^{re.escape(name)}" for name in unused]
    if opened.folder is None:
        return _filled(opened, patterns)
    config = open_config(opened.folder)
    is_alone = config.model_type == opened.config["model_type"]
    auto = transformers.AutoModelForCausalLM if is_alone else transformers.AutoModelForImageTextToText
    return load_folder(auto, opened.folder, unused=patterns, attn_implementation=_attention(config))


def text_model(opened: DecoderSource) -> Any:
    """Return `causal_lm` without the parts around the language model."""
    wrapped = opened.folder is not None and open_config(opened.folder).model_type != opened.config["model_type"]
    return _filled(opened) if wrapped else causal_lm(opened)


def _attention(config: Any) -> str:
    """Return transformers' attention implementation.

    Its eager one adds Falcon's ALiBi twice: to the scores and the mask.
    """
    return "sdpa" if config.model_type == "falcon" and config.alibi else "eager"


def _filled(opened: DecoderSource, unused: Sequence[str] = ()) -> Any:
    """Return transformers' model of a source's config with the weights read by trtkit, except `unused` patterns."""
    import torch
    import transformers

    auto_classes.register()
    fields = {key: value for key, value in _text_alone(opened.config).items() if key not in _NOT_ARGUMENTS}
    model_type = opened.config["model_type"]
    config = transformers.AutoConfig.for_model(_PLAIN_ROPE.get(model_type, model_type), **fields)
    how = {"attn_implementation": _attention(config), "dtype": torch.float32}
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config, **how)
    arrays = stack_experts(opened.checkpoint, str(model_type))
    state = {name: _weight(empty, name, array) for name, array in arrays.items()}
    return load_weights(type(empty), None, opened.where, unused=unused, config=config, state_dict=state, **how)


# In text, M-RoPE counts time, rows and columns alike, which equals plain RoPE, used by these models without images.
_PLAIN_ROPE = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
_ROPE = ("rope_parameters", "rope_scaling")


def beyond_text(opened: DecoderSource) -> dict[str, Any]:
    """Return the config fields that `causal_lm` ignores because text does not need them."""
    if opened.config["model_type"] not in _PLAIN_ROPE:
        return {}
    return {key: opened.config[key] for key in ("model_type", *_ROPE) if key in opened.config}


def _text_alone(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with plain RoPE instead of M-RoPE."""
    fields = dict(config)
    if config["model_type"] not in _PLAIN_ROPE:
        return fields
    for key in (key for key in _ROPE if isinstance(fields.get(key), dict)):
        rope = {name: value for name, value in fields[key].items() if name not in _OF_IMAGES}
        fields[key] = {name: "default" if value == "mrope" else value for name, value in rope.items()}
    return fields


def encoder(opened: DecoderSource) -> Any:
    """Return transformers' tokenizer of the source. Raises SourceError if it has none."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        written = {path.name for path in opened.tokenizer.write(Path(folder))}
        if not written & _VOCABULARIES:
            raise SourceError("the source has no tokenizer", opened.where, "give a source that has one")
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


# Files that contain a tokenizer's vocabulary; at least one is required.
_VOCABULARIES = {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"}
# Config fields that a config class does not take as arguments: infinity has its own notation.
_NOT_ARGUMENTS = {"model_type", "architectures", "transformers_version", "auto_map", "time_step_limit"}


def _weight(model: Any, name: str, array: Any) -> torch.Tensor:
    """Return a weight as an fp32 tensor, [in, out] if its module (GPT-2's) stores matrices that way."""
    import torch
    from transformers.pytorch_utils import Conv1D

    wide = torch.from_numpy(np.array(array, dtype=np.float32))
    if not isinstance(array, QuantizedMatrix):
        return wide
    module = dict(model.named_modules()).get(name.removesuffix(".weight"))
    return wide.T.contiguous() if isinstance(module, Conv1D) else wide
