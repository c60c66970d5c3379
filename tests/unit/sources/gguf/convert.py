"""Change weights of transformers as llama.cpp's converter does, by what its conversion/*.py say.

Tensors are named by gguf's tensor map and constants, which trtkit does not read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH, MODEL_TENSOR, TENSOR_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Array = np.ndarray[Any, Any]
Config = dict[str, Any]
_EXPERT = re.compile(r".+\.layers\.(\d+)\..*experts\.(\d+)\.(\w+)\.(weight|bias)")
_LAYER = re.compile(r".+\.layers\.(\d+)\.")
_EXPERT_TENSORS = {
    **dict.fromkeys(("gate_proj", "w1"), MODEL_TENSOR.FFN_GATE_EXP),
    **dict.fromkeys(("up_proj", "w3"), MODEL_TENSOR.FFN_UP_EXP),
    **dict.fromkeys(("down_proj", "w2"), MODEL_TENSOR.FFN_DOWN_EXP),
}
# What converters call weights before gguf's map names them.
_RENAMED: list[tuple[str, str]] = [
    (r"(\S+)\.attn_sub_norm\.weight$", r"\1.inner_attn_ln.weight"),  # as BitNet's first models are named
    (r"(\S+)\.ffn_sub_norm\.weight$", r"\1.ffn_layernorm.weight"),
    (r"(\S+e_score_correction)_bias$", r"\1.bias"),
    (r"(\S+)\.dt_bias$", r"\1.dt_proj.bias"),
    (r"(\S+(?:sinks|correct_output_scale|layer_scalar))$", r"\1.weight"),
]
_OWN_NAMES = dict.fromkeys(("NEMOTRON_H", "NEMOTRON_H_MOE"), ("model.", "backbone.")) | {"BLOOM": ("transformer.", "")}
_PERMUTED = (
    "LLAMA", "GRANITE", "GRANITE_MOE", "GRANITE_HYBRID", "SMOLLM3", "ARCEE", "OLMO", "MISTRAL3", "NEMOTRON_H",
    "NEMOTRON_H_MOE",
)  # fmt: skip
_OFFSET = ("GEMMA", "GEMMA2", "GEMMA3", "NEMOTRON", "QWEN3NEXT", "QWEN35", "QWEN35MOE")
_DELTA = ("QWEN3NEXT", "QWEN35", "QWEN35MOE")
_MAMBA = ("MAMBA2", "FALCON_H1", "GRANITE_HYBRID", "NEMOTRON_H", "NEMOTRON_H_MOE")


def stored_tensors(
    arch: str, checkpoint: dict[str, Array], config: Config, *, is_older: bool = False
) -> Iterator[tuple[str, Array]]:
    """Yield tensors as a GGUF file holds them. arch: a name in gguf.MODEL_ARCH. is_older: nothing is taken apart."""
    names = gguf.get_tensor_name_map(MODEL_ARCH[arch], 9)
    together: dict[str, list[Array]] = {}
    for name, array in checkpoint.items():
        layer = _LAYER.match(name)
        if (expert := _EXPERT.fullmatch(name)) is not None:
            tensor = TENSOR_NAMES[_EXPERT_TENSORS[expert[3]]].format(bid=expert[1])
            together.setdefault(f"{tensor}.{expert[4]}", []).insert(int(expert[2]), array)
        elif (altup := re.fullmatch(r"model\.(altup_\w+)\.(\d)\.weight", name)) is not None:
            tensor = MODEL_TENSOR.ALTUP_UNEMBD_PROJ if "unembed" in altup[1] else MODEL_TENSOR.ALTUP_PROJ
            together.setdefault(f"{TENSOR_NAMES[tensor]}.weight", []).insert(int(altup[2]), array)
        elif layer and not is_older and (parts := _taken_apart(arch, name, array, config)):
            yield from ((f"{TENSOR_NAMES[tensor].format(bid=layer[1])}{end}", part) for tensor, end, part in parts)
        elif ".act_fn." not in name:  # Apertus keeps these in metadata
            yield _stored_name(names, arch, name), _changed(arch, name, array, config)
    for name, array in _with_joined_gates(arch, {name: np.stack(arrays) for name, arrays in together.items()}).items():
        yield name, array


def _with_joined_gates(arch: str, stacked: dict[str, Array]) -> dict[str, Array]:
    """Return the matrices of all experts; Gemma 4's with gates and ups as one."""
    if arch != "GEMMA4":
        return stacked
    joined = {}
    for name, array in stacked.items():
        if "ffn_gate_exps" in name:
            up = stacked[name.replace("gate", "up")]
            joined[name.replace("ffn_gate_exps", "ffn_gate_up_exps")] = np.concatenate((array, up), 1)
        elif "ffn_up_exps" not in name:
            joined[name] = array
    return joined


def _stored_name(names: gguf.TensorNameMap, arch: str, name: str) -> str:
    """Return what the file calls a weight."""
    for pattern, other in _RENAMED:
        name = re.sub(pattern, other, name)
    old, new = _OWN_NAMES.get(arch, ("", ""))
    name = new + name.removeprefix(old) if old and name.startswith(old) else name
    stored = names.get_name(name, (".weight", ".bias"))
    assert stored is not None, name
    return stored


def _taken_apart(arch: str, name: str, array: Array, config: Config) -> list[tuple[MODEL_TENSOR, str, Array]]:
    """Return the tensors that a weight becomes, if they are several or have names of their own: kind, suffix, array."""
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = np.split(array, 2)
        shared = (MODEL_TENSOR.FFN_GATE_SHEXP, MODEL_TENSOR.FFN_UP_SHEXP)
        kinds = shared if config.get("num_local_experts") else (MODEL_TENSOR.FFN_GATE, MODEL_TENSOR.FFN_UP)
        return [(kinds[0], ".weight", gate), (kinds[1], ".weight", up)]
    if name.endswith("shared_mlp.output_linear.weight") and not config.get("num_local_experts"):
        return [(MODEL_TENSOR.FFN_DOWN, ".weight", array)]
    if name.endswith("kv_b_proj.weight") and arch == "DEEPSEEK2":
        nope, heads = config["qk_nope_head_dim"], config["num_attention_heads"]
        by_head = array.reshape(heads, nope + config["v_head_dim"], -1)
        keys, values = by_head[:, :nope].swapaxes(1, 2), by_head[:, nope:]
        return [(MODEL_TENSOR.ATTN_K_B, ".weight", keys), (MODEL_TENSOR.ATTN_V_B, ".weight", values)]
    if "in_proj_qkvz" in name:
        rows, gates = _by_kind(array, config)
        return [(MODEL_TENSOR.ATTN_QKV, ".weight", rows), (MODEL_TENSOR.ATTN_GATE, ".weight", gates)]
    if name.endswith("router.scale"):
        return [(MODEL_TENSOR.FFN_GATE_INP, ".scale", array)]
    return [(MODEL_TENSOR.FFN_DOWN_EXP, ".scale", array)] if name.endswith("per_expert_scale") else []


def _by_kind(array: Array, config: Config) -> tuple[Array, Array]:
    """Return the rows [q | k | v | z] of each key head as all q, then all k, then all v; and all z."""
    heads, ratio = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    key, value = config["linear_key_head_dim"], ratio * config["linear_value_head_dim"]
    q, k, v, z = np.split(array.reshape(heads, -1, array.shape[-1]), np.cumsum([key, key, value]), axis=1)
    return np.concatenate([part.reshape(-1, array.shape[-1]) for part in (q, k, v)]), z.reshape(-1, array.shape[-1])


def _changed(arch: str, name: str, array: Array, config: Config) -> Array:
    """Return a weight as the converter stores it."""
    if arch == "FALCON_H1":
        array = array * _factors(name, config).reshape((-1, 1) if array.ndim == 2 and "in_proj" in name else ())
    for matches, change in _CHANGES:
        if matches(arch, name):
            array = change(array, config, name)
    return array


def _factors(name: str, config: Config) -> Array:
    """Return what Falcon-H1's converter multiplies a weight by: one number, or one for each row of `in_proj`."""
    gate, down = config["mlp_multipliers"]
    if "mamba.in_proj" in name:
        inner, states = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        counts = (inner, inner, states, states, config["mamba_n_heads"])
        return np.float32(config["ssm_in_multiplier"]) * np.repeat(np.float32(config["ssm_multipliers"]), counts)
    both = {
        "down_proj": down, "gate_proj": gate, "k_proj": config["key_multiplier"] * config["attention_in_multiplier"],
        "q_proj": config["attention_in_multiplier"], "v_proj": config["attention_in_multiplier"],
        "o_proj": config["attention_out_multiplier"], "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    parts = set(name.split("."))
    return np.float32(next((factor for part, factor in both.items() if part in parts), 1.0))


def _permuted(array: Array, config: Config, name: str) -> Array:
    """Return rows with the halves of each head interleaved."""
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _ungrouped(array: Array, config: Config, _: str) -> Array:
    """Return the rows [q | k | v] of each head as all q, then all k, then all v."""
    heads = config.get("num_attention_heads") or config["n_head"]
    by_head = array.reshape(heads, 3, -1, *array.shape[1:])
    return np.concatenate([by_head[:, part].reshape(-1, *array.shape[1:]) for part in range(3)])


def _ungrouped_shared(array: Array, config: Config, _: str) -> Array:
    """Return the rows [queries | k | v] of each key head as all queries, then all k, then all v."""
    heads = config["num_attention_heads"]
    keys = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    size = config["hidden_size"] // heads
    by_group = array.reshape(keys, heads // keys + 2, size, *array.shape[1:])
    parts = (by_group[:, :-2], by_group[:, [-2]], by_group[:, [-1]])
    return np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])


def _tiled(array: Array, config: Config, name: str) -> Array:
    """Return Qwen3.5's value heads, grouped by key head, dealt out in turn: rows, or columns of `out_proj`."""
    heads = config["linear_num_key_heads"]
    ratio = config["linear_num_value_heads"] // heads
    if "out_proj" in name:
        by_head = array.reshape(len(array), heads, ratio, -1)
        return by_head.swapaxes(1, 2).reshape(array.shape)
    first = 2 * heads * config["linear_key_head_dim"] if re.search(r"in_proj_qkv\.|conv1d", name) else 0
    values = array[first:].reshape(heads, ratio, -1, *array.shape[1:]).swapaxes(0, 1)
    return np.concatenate([array[:first], values.reshape(-1, *array.shape[1:])])


def _by_name(archs: tuple[str, ...], pattern: str) -> Callable[[str, str], bool]:
    compiled = re.compile(pattern)
    return lambda arch, name: arch in archs and compiled.search(name) is not None


_Change = tuple["Callable[[str, str], bool]", "Callable[[Array, Config, str], Array]"]
_CHANGES: list[_Change] = [
    (_by_name(_PERMUTED, r"\.[qk]_proj\."), _permuted),
    (_by_name(_OFFSET, r"(?<!linear_attn\.)norm\.weight$"), lambda array, _, __: array + 1),
    (_by_name(("GPT2",), r"\.c_(attn|proj|fc)\.weight"), lambda array, _, __: array.T),
    (_by_name(("GPTNEOX", "BLOOM"), "query_key_value"), _ungrouped),
    (_by_name(("FALCON",), "query_key_value"), _ungrouped_shared),
    (_by_name(("QWEN35", "QWEN35MOE"), r"linear_attn\.(?!norm)"), _tiled),
    (_by_name(_MAMBA + _DELTA, r"A_log$"), lambda array, _, __: -np.exp(array)),
    (_by_name(_MAMBA + _DELTA, r"conv1d\.weight$"), lambda array, _, __: array.squeeze()),
    (_by_name(("LFM2",), r"conv\.conv\.weight$"), lambda array, _, __: array.squeeze(1)),
    (_by_name(_MAMBA, r"(A_log|\.D)$"), lambda array, _, __: array.reshape(-1, 1)),
    (
        _by_name(_MAMBA, r"(mamba|mixer)\.norm\.weight$"),
        lambda array, config, _: array.reshape(config.get("n_groups") or config["mamba_n_groups"], -1),
    ),
    (_by_name(("QWEN2MOE", *_DELTA), r"shared_expert_gate\.weight$"), lambda array, _, __: array.reshape(-1)),
]  # fmt: skip
