"""Conversion of a GGUF file's metadata to the fields of a Hugging Face config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.sources.gguf.families import FAMILIES, VARIANTS
from trtkit.sources.gguf.layout import LATER
from trtkit.sources.gguf.metadata import Metadata, has_tensor, head_dim, sliding_types
from trtkit.sources.gguf.rope import rope_parameters

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.layout import GgufFamily
    from trtkit.sources.gguf.metadata import Fields

_TOKEN_IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}


def family_of(file: GgufFile) -> GgufFamily:
    """Return the storage description of the file's architecture. Raises SourceError for an unknown one."""
    architecture = str(file.metadata.get("general.architecture"))
    if architecture not in FAMILIES:
        known = f"known: {', '.join(FAMILIES)}"
        raise SourceError(f"architecture `{architecture}` is not supported", str(file.path), known)
    for what, family in VARIANTS.get(architecture, {}).items():
        if has_tensor(file, what) or file.metadata.get(f"{architecture}.{what}"):
            return family
    return FAMILIES[architecture]


def hf_config(file: GgufFile, family: GgufFamily) -> Fields:
    """Return the fields of a config.json.

    Raises SourceError for missing metadata, ProblemsError for unknown metadata.
    """
    metadata = Metadata(file, str(file.metadata["general.architecture"]))
    metadata.ignore(*family.ignored)
    config: Fields = {"model_type": family.model_type}
    config |= {field: value for key, field in family.fields.items() if (value := metadata.get(key)) is not None}
    config = {**family.fixed, **config}
    if "sliding_window" in config:  # llama.cpp writes 0 if no layer slides
        config["sliding_window"] = config["sliding_window"] or None
    for key, value in family.required.items():
        if (stated := metadata.get(key, value)) != value:
            raise SourceError(f"`{key}` is `{stated}`, only `{value}` is supported", metadata.where)
    if later := config.pop(LATER, 0):
        config["num_hidden_layers"] -= later
    if family.has_layer_types and config["sliding_window"]:
        config["layer_types"] = sliding_types(metadata)
    config |= {field: has_tensor(file, tensor) for field, tensor in family.flags.items()}
    config |= family.derived(metadata, file) if family.derived else {}
    if "token_embd.weight" not in file.tensors:
        raise SourceError(
            "tensor `token_embd.weight` is missing", str(file.path), "give the GGUF file of a whole model"
        )
    config["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config |= _query_scale(metadata, family) | _rope(file, metadata, family)
    for key, field in _TOKEN_IDS.items():
        if (value := file.metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[field] = value
    _check_attention(metadata, family)
    metadata.check_all_read()
    return config


def _rope(file: GgufFile, metadata: Metadata, family: GgufFamily) -> Fields:
    """Return `rope_parameters`; empty if the family has none or derives them."""
    if not family.has_rope:
        return {}
    rope = rope_parameters(file, metadata, family)
    if "original_max_position_embeddings" not in rope:
        return {"rope_parameters": rope}
    # It takes precedence over the parameters, as Phi 3's default does.
    return {"rope_parameters": rope, "original_max_position_embeddings": rope["original_max_position_embeddings"]}


def _query_scale(metadata: Metadata, family: GgufFamily) -> dict[str, int]:
    """Return Gemma's `query_pre_attn_scalar`, which the file omits: head_dim except for the 27B models."""
    if family.head_scaled_at is None:
        return {}
    if int(metadata.need("block_count")) != family.head_scaled_at:
        return {"query_pre_attn_scalar": head_dim(metadata)}
    return {"query_pre_attn_scalar": metadata.need("embedding_length") // metadata.need("attention.head_count")}


def _check_attention(metadata: Metadata, family: GgufFamily) -> None:
    """Raise SourceError if attention is not causal, value heads differ from key heads, or heads cannot be grouped."""
    if not metadata.get("attention.causal", True):
        raise SourceError("this is an encoder: its tokens see later ones", metadata.where, "give a decoder-only model")
    if family.heads in ("latent", "none"):
        return
    keys, values = head_dim(metadata), metadata.get("attention.value_length")
    if values is not None and values != keys:
        raise SourceError(
            f"value heads of size {values} with key heads of size {keys} are not supported", metadata.where
        )
    if family.heads == "listed":
        return
    heads, groups = metadata.get("attention.head_count"), metadata.get("attention.head_count_kv")
    if "attention.head_count_kv" not in family.fields and groups not in (None, heads):
        what = f"{groups} key heads for {heads} query heads are not supported for `{family.model_type}`"
        raise SourceError(what, metadata.where)
