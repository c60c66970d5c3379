"""Write a model of transformers as TensorRT-LLM's conversion scripts lay it out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoders import Model

Arrays = dict[str, np.ndarray]
Names = dict[str, str]

ROTARY = {
    "model.embed_tokens": "transformer.vocab_embedding",
    "model.norm": "transformer.ln_f",
    "model.layers": "transformer.layers",
    "self_attn.o_proj": "attention.dense",
    "post_attention_layernorm": "post_layernorm",
    "mlp.gate_proj": "mlp.fc",
    "mlp.up_proj": "mlp.gate",
    "mlp.down_proj": "mlp.proj",
    "self_attn.q_norm": "attention.q_layernorm",
    "self_attn.k_norm": "attention.k_layernorm",
    "block_sparse_moe.gate": "mlp.router",
}
MIXTURE = {"mlp.gate.": "mlp.router.", **ROTARY}
PLAIN = {**ROTARY, "mlp.up_proj": "mlp.fc", "mlp.c_fc": "mlp.fc", "mlp.c_proj": "mlp.proj"}
PHI = {
    **ROTARY,
    "model.final_layernorm": "transformer.ln_f",
    "self_attn.dense": "attention.dense",
    "mlp.fc1": "mlp.fc",
    "mlp.fc2": "mlp.proj",
    "mlp.gate_up_proj": "mlp.fc",
}
WIDENED = {"mlp.dense_h_to_4h": "mlp.fc", "mlp.dense_4h_to_h": "mlp.proj"}
NEOX = {
    **WIDENED,
    "gpt_neox.embed_in": "transformer.vocab_embedding",
    "gpt_neox.final_layer_norm": "transformer.ln_f",
    "gpt_neox.layers": "transformer.layers",
    "embed_out": "lm_head",
}
BLOOM = {
    **WIDENED,
    "transformer.word_embeddings_layernorm": "transformer.ln_embed",
    "transformer.word_embeddings": "transformer.vocab_embedding",
    "transformer.h.": "transformer.layers.",
    "self_attention.dense": "attention.dense",
    "post_attention_layernorm": "post_layernorm",
    "ln_attn": "input_layernorm",
    "ln_mlp": "mlp_layernorm",
}
GPT = {
    "transformer.wte": "transformer.vocab_embedding",
    "transformer.wpe": "transformer.position_embedding",
    "transformer.norm_f": "transformer.ln_f",
    "transformer.h.": "transformer.layers.",
    "transformer.blocks.": "transformer.layers.",
    "ln_1": "input_layernorm",
    "ln_2": "post_layernorm",
    "norm_1": "input_layernorm",
    "norm_2": "post_layernorm",
    "attn.c_proj": "attention.dense",
    "attn.out_proj": "attention.dense",
    "mlp.c_fc": "mlp.fc",
    "mlp.c_proj": "mlp.proj",
    "mlp.fc_in": "mlp.fc",
    "mlp.fc_out": "mlp.proj",
    "ffn.up_proj": "mlp.fc",
    "ffn.down_proj": "mlp.proj",
}
OPT = {
    "model.decoder.embed_tokens": "transformer.vocab_embedding",
    "model.decoder.embed_positions": "transformer.position_embedding",
    "model.decoder.final_layer_norm": "transformer.ln_f",
    "model.decoder.layers": "transformer.layers",
    "self_attn_layer_norm": "input_layernorm",
    "final_layer_norm": "post_layernorm",
    "self_attn.out_proj": "attention.dense",
    "fc1": "mlp.fc",
    "fc2": "mlp.proj",
}
COLUMNS = ("attention.dense.weight", "mlp.proj.weight")
ROWS = ("mlp.fc.weight", "mlp.fc.bias", "mlp.gate.weight", "mlp.gate.bias", "lm_head.weight", "lm_head.bias")
HEAD_NORMS = ("q_layernorm.weight", "k_layernorm.weight")


@dataclass(frozen=True)
class Layout:
    """What the scripts do with a family. plus_one: norms get 1 added. experts: their module, and gate, up and down."""

    architecture: str
    names: Names
    config: dict[str, Any]
    ranks: int = 1
    has_copy: bool = False
    plus_one: bool = False
    is_grouped: bool = False
    experts: tuple[str, str, str, str] = ("mlp.experts", "gate_proj", "up_proj", "down_proj")


def heads_of(spec: Any) -> tuple[int, int, int]:
    """Return the numbers of heads and key heads, and a head's size."""
    attention = spec.layers[0].attention
    return attention.num_attention_heads, attention.num_key_value_heads, attention.head_dim


def parts_of(joined: np.ndarray, heads: tuple[int, int, int], *, is_grouped: bool) -> list[np.ndarray]:
    """Return queries, keys and values that a model joins: one after another, or for each key head in turn."""
    count, keys, size = heads
    if not is_grouped:
        return np.split(joined, [count * size, (count + keys) * size])
    groups = joined.reshape(keys, count // keys + 2, size, *joined.shape[1:])
    pieces = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
    return [piece.reshape(-1, *joined.shape[1:]) for piece in pieces]


def converted(model: Model, layout: Layout) -> tuple[Arrays, dict[str, list[np.ndarray]]]:
    """Return arrays by TensorRT-LLM's name, and queries, keys and values by theirs."""
    arrays, qkv, heads = {}, {}, heads_of(model.spec)
    for name, tensor in model.checkpoint.items():
        array, new = tensor.numpy(), name
        if "q_proj" in name:
            apart = [model.checkpoint[name.replace("q_proj", f"{part}_proj")].numpy() for part in "qkv"]
            qkv[renamed(re.sub(r"(self_attn|attn)\.q_proj", "attention.qkv", name), layout.names)] = apart
        elif re.search(r"query_key_value|qkv_proj|Wqkv|c_attn", name):
            new = re.sub(r"\w+\.(query_key_value|qkv_proj|Wqkv|c_attn)", "attention.qkv", name)
            apart = parts_of(array, heads, is_grouped=layout.is_grouped)
            qkv[renamed(new, layout.names)] = apart
        elif not re.search(r"k_proj|v_proj|experts\.|shared_expert\.", name):
            arrays[renamed(new, layout.names)] = array
    for name in [each for each in arrays if layout.plus_one and each.endswith(("norm.weight", "ln_f.weight"))]:
        arrays[name] = arrays[name] + 1
    if layout.has_copy:
        arrays["lm_head.weight"] = arrays["transformer.vocab_embedding.weight"]
    return arrays, qkv


def renamed(name: str, names: Names) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def rank_of(arrays: Arrays, rank: int, ranks: int) -> Arrays:
    """Return a rank's part of every array."""
    own = {}
    for name, whole in arrays.items():
        padding = -len(whole) % ranks if name.startswith("lm_head") else 0
        array = np.pad(whole, [(0, padding)] + [(0, 0)] * (whole.ndim - 1))
        axis = 1 if name.endswith(COLUMNS) else 0
        is_split = name.endswith((*COLUMNS, *ROWS)) or (name.endswith(HEAD_NORMS) and array.ndim == 2)
        own[name] = np.ascontiguousarray(np.split(array, ranks, axis)[rank] if is_split else array)
    return own


def qkv_of(parts: list[np.ndarray], heads: tuple[int, int, int], rank: int, ranks: int) -> np.ndarray:
    """Return a rank's queries, keys and values; ranks share key heads where there are fewer."""
    keys = [np.repeat(part.reshape(heads[1], heads[2], -1), max(1, ranks // heads[1]), 0) for part in parts[1:]]
    whole = [parts[0], *(part.reshape(-1, *parts[0].shape[1:]) for part in keys)]
    return np.concatenate([np.split(part, ranks)[rank] for part in whole])


def experts_of(model: Model, layout: Layout, rank: int) -> Arrays:
    """Return a rank's experts, of all in one: up over gate, and down; and of the shared one likewise."""
    arrays, state, (module, *names) = {}, model.checkpoint, layout.experts
    for layer in sorted({name.split(".")[2] for name in state if "experts." in name}):
        start, new = f"model.layers.{layer}.{module}", f"transformer.layers.{layer}.mlp."
        count = len({name.split(".")[5] for name in state if name.startswith(start)})
        stacks = [[state[f"{start}.{each}.{name}.weight"].numpy() for each in range(count)] for name in names]
        arrays |= fused(*(np.stack(stack) for stack in stacks), rank, layout.ranks, new)
        shared = [state.get(f"model.layers.{layer}.mlp.shared_expert.{name}.weight") for name in names]
        if shared[0] is not None:
            arrays |= fused(*(each.numpy() for each in shared), rank, layout.ranks, f"{new}shared_expert.")
    return arrays


def fused(gate: np.ndarray, up: np.ndarray, down: np.ndarray, rank: int, ranks: int, start: str) -> Arrays:
    """Return a rank's part of some matrices."""
    both = [np.split(each, ranks, -2)[rank] for each in (up, gate)]
    return {
        f"{start}fc.weight": np.concatenate(both, -2),
        f"{start}proj.weight": np.ascontiguousarray(np.split(down, ranks, -1)[rank]),
    }


def write_trtllm(folder: Path, model: Model, layout: Layout) -> Path:
    """Write config.json and every rank."""
    arrays, qkv = converted(model, layout)
    for name in [each for each in arrays if layout.architecture == "Phi3ForCausalLM"]:
        if name.endswith("mlp.fc.weight"):
            arrays[name] = np.concatenate(np.split(arrays[name], 2)[::-1])
    if layout.architecture == "OPTForCausalLM":
        arrays["transformer.position_embedding.weight"] = arrays["transformer.position_embedding.weight"][2:]
    heads = heads_of(model.spec)
    for rank in range(layout.ranks):
        own = rank_of(arrays, rank, layout.ranks) | experts_of(model, layout, rank)
        own |= {name: qkv_of(parts, heads, rank, layout.ranks) for name, parts in qkv.items()}
        save_file(own, folder / f"rank{rank}.safetensors")
    mapping = {"world_size": layout.ranks, "tp_size": layout.ranks, "pp_size": 1}
    config = {"architecture": layout.architecture, "dtype": "float32", "mapping": mapping, **sizes_of(model)}
    (folder / "config.json").write_text(json.dumps(config | layout.config))
    return folder


def sizes_of(model: Model) -> dict[str, Any]:
    """Return the sizes that every config states."""
    spec, heads = model.spec, heads_of(model.spec)
    arrays = model.checkpoint
    inner = [len(array) for name, array in arrays.items() if re.search(r"layers\.0\.mlp\.(gate|up)_proj\.weight", name)]
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "max_position_embeddings": model.config.get("max_position_embeddings") or 64,
        **({"intermediate_size": inner[0]} if inner else {}),
    }
