"""Say in the fields of a Hugging Face config.json what a GGUF file's metadata say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.sources.gguf.families import FAMILIES, MIXTRAL
from trtkit.sources.gguf.layout import LATER
from trtkit.sources.gguf.metadata import Metadata, head_dim
from trtkit.sources.gguf.rope import rope_parameters

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.layout import GgufFamily

_TOKEN_IDS = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}


def family_of(file: GgufFile) -> GgufFamily:
    """Return how the file's architecture is stored. Raises SourceError for one that is not known."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in FAMILIES:
        known = f"known: {', '.join(FAMILIES)}"
        raise SourceError(f"architecture `{architecture}` is not supported", str(file.path), known)
    if architecture == "llama" and file.metadata.get("llama.expert_count"):
        return MIXTRAL
    return FAMILIES[architecture]


def hf_config(file: GgufFile, family: GgufFamily) -> dict[str, Any]:
    """Return the fields of a config.json.

    Raises SourceError for metadata that are missing, ProblemsError for those that nothing here knows.
    """
    metadata = Metadata(file, str(file.metadata["general.architecture"]))
    config: dict[str, Any] = {"model_type": family.model_type}
    config |= {field: value for key, field in family.fields.items() if (value := metadata.get(key)) is not None}
    config |= {name: value for name, value in family.fixed.items() if name not in config or value is not None}
    for key, value in family.required.items():
        if (stated := metadata.get(key, value)) != value:
            raise SourceError(f"`{key}` is `{stated}`, only `{value}` is supported", metadata.where)
    if (later := config.get(LATER)) is not None:
        config["num_hidden_layers"] -= later
    if family.has_layer_types and config["sliding_window"]:
        slides = metadata.need_list("attention.sliding_window_pattern")
        config["layer_types"] = ["sliding_attention" if each else "full_attention" for each in slides]
    config |= {field: f"blk.0.{tensor}" in file.tensors for field, tensor in family.flags.items()}
    if "token_embd.weight" not in file.tensors:
        raise SourceError(
            "tensor `token_embd.weight` is missing", str(file.path), "give the GGUF file of a whole model"
        )
    config["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config |= _query_scale(metadata, family)
    if family.has_rope:
        rope = config["rope_parameters"] = rope_parameters(file, metadata, family)
        if "original_max_position_embeddings" in rope:  # beside the parameters it counts more, as Phi 3's default does
            config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    for key, field in _TOKEN_IDS.items():
        if (value := file.metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[field] = value
    _check_attention(metadata, family)
    metadata.check_all_read()
    return config


def _query_scale(metadata: Metadata, family: GgufFamily) -> dict[str, int]:
    """Return Gemma's `query_pre_attn_scalar`, which the file leaves to its reader: head_dim but for the 27B models."""
    if family.head_scaled_at is None:
        return {}
    if int(metadata.need("block_count")) != family.head_scaled_at:
        return {"query_pre_attn_scalar": head_dim(metadata)}
    return {"query_pre_attn_scalar": metadata.need("embedding_length") // metadata.need("attention.head_count")}


def _check_attention(metadata: Metadata, family: GgufFamily) -> None:
    """Raise SourceError where tokens see later ones, value heads differ from key heads, or heads cannot be grouped."""
    if not metadata.get("attention.causal", True):
        raise SourceError("this is an encoder: its tokens see later ones", metadata.where, "give a decoder-only model")
    keys, values = head_dim(metadata), metadata.get("attention.value_length")
    if values is not None and values != keys:
        raise SourceError(
            f"value heads of size {values} with key heads of size {keys} are not supported", metadata.where
        )
    heads, groups = metadata.get("attention.head_count"), metadata.get("attention.head_count_kv")
    if "attention.head_count_kv" not in family.fields and groups not in (None, heads):
        what = f"{groups} key heads for {heads} query heads are not supported for `{family.model_type}`"
        raise SourceError(what, metadata.where)
