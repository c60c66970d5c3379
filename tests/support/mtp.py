"""Tiny models with a multi-token prediction (MTP) module in their folders, and the module in torch.

The model is saved by transformers with one extra layer, whose weights then have the names of the module's layer in
the authors' checkpoints. The module around it follows the authors' and vLLM's implementations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

WINDOW = 24
"""Tokens per window of text in training."""
EXPERTS = {"moe_intermediate_size": 36, "num_experts_per_tok": 2}
SHARED = {
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DELTA = {
    "head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
SIZES: dict[str, dict[str, Any]] = {
    "glm4_moe": {
        **SHARED,
        **EXPERTS,
        "head_dim": 8,
        "n_routed_experts": 6,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "n_group": 1,
        "topk_group": 1,
    },
    "deepseek_v3": {
        **SHARED,
        **EXPERTS,
        "num_key_value_heads": 6,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 6,
        "n_group": 3,
        "topk_group": 2,
        "first_k_dense_replace": 1,
    },
    "glm4_moe_lite": {
        **SHARED,
        **EXPERTS,
        "num_key_value_heads": 6,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 6,
        "n_group": 1,
        "topk_group": 1,
    },
    "qwen3_next": {
        **SHARED,
        **EXPERTS,
        "head_dim": 8,
        "num_experts": 5,
        "shared_expert_intermediate_size": 52,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
    },
    "qwen3_5_text": {**SHARED, **DELTA},
    "qwen3_5_moe_text": {
        **{name: size for name, size in SHARED.items() if name != "intermediate_size"},
        **EXPERTS,
        **DELTA,
        "num_experts": 5,
        "shared_expert_intermediate_size": 52,
    },
    "exaone_moe": {
        **SHARED,
        **EXPERTS,
        "head_dim": 8,
        "num_experts": 6,
        "n_group": 1,
        "topk_group": 1,
        "sliding_window": 5,
    },
    "mellum": {**SHARED, **EXPERTS, "head_dim": 8, "num_experts": 5, "sliding_window": 5},
    "mimo": {**SHARED},
    "mimo_v2_flash": {
        **SHARED,
        **EXPERTS,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "v_head_dim": 8,
        "n_routed_experts": 6,
        "sliding_window": 5,
        "n_group": 1,
        "topk_group": 1,
    },
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_RECURRENT = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
TYPES: dict[str, dict[str, list[str]]] = {
    "exaone_moe": {"layer_types": [_SLIDING, _FULL, _FULL], "mlp_layer_types": ["dense", "sparse", "dense"]},
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "mellum": {"layer_types": [_FULL, _SLIDING, _SLIDING], "mlp_layer_types": ["dense", "sparse", "sparse"]},
    "mimo": {"layer_types": [_FULL] * 3},
    "mimo_v2_flash": {"layer_types": [_FULL, _SLIDING, _SLIDING], "mlp_layer_types": ["dense", "sparse", "dense"]},
    **{name: {"layer_types": ["linear_attention", _FULL, _FULL]} for name in _RECURRENT},
}
"""Types of a model's two layers and of the module's."""


@dataclass(frozen=True)
class Names:
    """What the authors' files call a module's weights. layer: prefix of its decoder layer; renamed: parts within it."""

    layer: str
    outside: tuple[str, str, str, str]
    renamed: tuple[str, str] = ("", "")
    count: str | None = "num_nextn_predict_layers"


_OUTSIDE = ("embedding_norm", "hidden_norm", "projection", "last_norm")
_NEXT = "model.layers.{i}."
# The module's weights by their names in checkpoints.
_NEXTN = Names(_NEXT, tuple(_NEXT + name for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")))
_QWEN = Names("mtp.layers.0.", ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"))
_MIMO, _MIMO_V2 = "model.mtp_layers.0.", "model.mtp.layers.0."
_MIMO_NAMES = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
_MIMO_V2_NAMES = ("enorm", "hnorm", "eh_proj", "final_layernorm")
NAMES = {
    **dict.fromkeys(("deepseek_v3", "glm4_moe", "glm4_moe_lite"), _NEXTN),
    **dict.fromkeys(("exaone_moe", "mellum"), _QWEN),
    "mimo": Names(_MIMO, tuple(_MIMO + name for name in _MIMO_NAMES)),
    "mimo_v2_flash": Names(
        _MIMO_V2,
        tuple(_MIMO_V2 + name for name in _MIMO_V2_NAMES),
        ("post_attention_layernorm", "pre_mlp_layernorm"),
        None,
    ),
    **dict.fromkeys(_RECURRENT, replace(_QWEN, count=None)),
}


class Module(nn.Module):
    """An MTP module. model: transformers', whose last layer is the module's.

    swaps: whether the hidden state comes first in the concatenated vector. A mistake to plant: `chains_raw` computes
    the next guess from the hidden state before the last norm.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        size, eps = model.config.hidden_size, model.config.rms_norm_eps
        norm = type(model.model.norm)
        self.embedding_norm, self.hidden_norm, self.last_norm = norm(size, eps), norm(size, eps), norm(size, eps)
        self.projection = nn.Linear(2 * size, size, bias=False)
        self.layer = model.model.layers[-1]
        self.shared = {"table": model.model.embed_tokens, "head": model.lm_head, "rotary": model.model.rotary_emb}
        self.config = model.config
        self.types = {name: getattr(model.config, name)[-1] for name in TYPES.get(model.config.model_type, {})}
        self.kind = self.types.get("layer_types", _FULL)
        self.swaps, self.chains_raw = model.config.model_type == "mimo", False

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, S, V], and hidden states [B, S, D] for the next guess. ids: the tokens after `hidden`'s."""
        count = ids.shape[1]
        parts = [self.embedding_norm(self.shared["table"](ids)), self.hidden_norm(hidden)]
        x = self.projection(torch.cat(parts[::-1] if self.swaps else parts, -1))
        mask, positions = self._mask(count, x.dtype), torch.arange(count)[None]
        rotary = self.shared["rotary"]
        by_type = (self.kind,) if hasattr(rotary, f"{self.kind}_inv_freq") else ()
        turned = rotary(x, positions, *by_type)
        x = self.layer(x, position_embeddings=turned, attention_mask=mask, position_ids=positions)
        normed = self.last_norm(x)
        return self.shared["head"](normed), x if self.chains_raw else normed

    def _mask(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return -inf, almost, where a token does not see another: a later one, or one out of the window."""
        window = self.config.sliding_window if self.kind == _SLIDING else count
        ages = torch.arange(count)[:, None] - torch.arange(count)
        return torch.where((ages >= 0) & (ages < window), 0.0, torch.finfo(dtype).min).to(dtype)[None, None]


@dataclass(frozen=True, eq=False)
class Pair:
    """A transformers model, without the extra layer, and its module."""

    model: Any
    module: Module

    def hidden(self, ids: Tensor, *, is_raw: bool = False) -> Tensor:
        """Return the model's hidden states [B, S, D] after the final norm, or before it if is_raw."""
        kept: list[Tensor] = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda _, arguments: kept.append(arguments[0]))
        normed = self.model.model(ids, use_cache=False).last_hidden_state
        hook.remove()
        return kept[0] if is_raw else normed


def new_pair(model_type: str, layers: int = 2, **changes: Any) -> Pair:
    """Return a model with `layers` and its module, with all weights random."""
    types = {name: [*(kinds[:2] * layers)[:layers], kinds[2]] for name, kinds in TYPES.get(model_type, {}).items()}
    sizes = {**SIZES[model_type], **types, "num_hidden_layers": layers + 1, **changes}
    config, eager = AutoConfig.for_model(model_type, **sizes), {"attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_config(config, **eager, experts_implementation="eager").eval()
    module = Module(model).eval()
    for part in (model, module):
        tensors = [*part.named_parameters(), *(each for each in part.named_buffers() if "score_correction" in each[0])]
        for name, weight in tensors:
            is_matrix, is_gain = weight.dim() > 1, "norm" in name and not model_type.startswith("qwen")
            deviation = 1.5 * weight.shape[-1] ** -0.5 if is_matrix else 0.3
            nn.init.normal_(weight, float(is_gain and not is_matrix), deviation)
    pair = Pair(model, module)
    _resize(pair, -1)
    return pair


def _resize(pair: Pair, change: int) -> None:
    """Remove the module's layer from the model (-1), or put it back (1)."""
    layers, config = pair.model.model.layers, pair.model.config
    pair.model.model.layers = layers[:-1] if change < 0 else nn.ModuleList([*layers, pair.module.layer])
    config.num_hidden_layers += change
    for name, kind in pair.module.types.items():
        types = getattr(config, name)
        setattr(config, name, types[:-1] if change < 0 else [*types, kind])


def save(folder: Path, pair: Pair, *, repeats_shared: bool = False) -> Path:
    """Write the folder of a model with its module, in the authors' form.

    repeats_shared: also stores the module's copies of embedding and LM head, as in DeepSeek's checkpoints.
    """
    _resize(pair, 1)
    pair.model.save_pretrained(folder)
    _resize(pair, -1)
    path, fields = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    weights, last = load_file(path), fields["num_hidden_layers"] - 1
    names = NAMES[fields["model_type"]]
    for name in [name for name in weights if name.startswith(_NEXT.format(i=last))]:
        inside = name.removeprefix(_NEXT.format(i=last)).replace(*names.renamed)
        weights[names.layer.format(i=last) + inside] = weights.pop(name)
    for own, name in zip(_OUTSIDE, names.outside, strict=True):
        weights[f"{name.format(i=last)}.weight"] = getattr(pair.module, own).weight.detach().clone()
    if fields["model_type"] == "mimo_v2_flash":  # the second of several modules
        weights["model.mtp.layers.1.enorm.weight"] = torch.ones(1)
    if repeats_shared:
        start = _NEXT.format(i=last)
        weights[f"{start}embed_tokens.weight"] = pair.module.shared["table"].weight.detach().clone()
        weights[f"{start}shared_head.head.weight"] = pair.module.shared["head"].weight.detach().clone()
    save_file({name: each.contiguous() for name, each in weights.items()}, path, metadata={"format": "pt"})
    fields["num_hidden_layers"] = last
    if names.count:
        fields[names.count] = 1
    for name, kind in pair.module.types.items():
        fields[name] = fields[name][:-1]
        if fields["model_type"] in ("exaone_moe", "mellum") and kind != TYPES[fields["model_type"]][name][2]:
            fields[f"mtp_{name}"] = [kind]
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def train(pair: Pair, ids: Tensor, steps: int, seed: int = 0) -> None:
    """Train a pair to continue windows of `ids` [N], the module on the model's hidden states, with a fixed seed."""
    generator = torch.Generator().manual_seed(seed)
    parameters = list({id(each): each for part in (pair.model, pair.module) for each in part.parameters()}.values())
    optimizer, loss = torch.optim.AdamW(parameters, lr=4e-3), nn.functional.cross_entropy
    for _ in range(steps):
        starts = torch.randint(len(ids) - WINDOW - 1, (8,), generator=generator)
        rows = torch.stack([ids[start : start + WINDOW] for start in starts.tolist()])
        hidden = pair.hidden(rows)
        logits, states = pair.model.lm_head(hidden), hidden[:, :-1]
        total = loss(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        for ahead in (1, 2):  # the second guess uses the first one's hidden state
            logits, states = pair.module(rows[:, ahead : WINDOW - 1 + 1], states)
            total = total + 0.5 * loss(logits[:, :-1].flatten(0, 1), rows[:, ahead + 1 :].flatten())
            states = states[:, :-1]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    pair.model.eval()


@torch.inference_mode()
def speculate(pair: Pair, prompt: list[int], count: int, most: int) -> tuple[list[int], int, int]:
    """Return `count` greedy tokens after a prompt, and how many were guessed and accepted. most: guesses per step.

    After a wrong guess, a recurrent model recomputes the accepted tokens, in a step without guesses.
    """
    known, guessed, accepted = [*prompt, _next(pair, prompt)], 0, 0
    is_recurrent = pair.model.config.model_type.startswith("qwen")
    while len(known) < len(prompt) + count:
        left = len(prompt) + count - len(known)
        guesses: list[int] = []
        ids, hidden = torch.tensor([known[1:]]), pair.hidden(torch.tensor([known[:-1]]))
        for _ in range(min(most, left - 1)):  # the last token is not guessed
            logits, states = pair.module(ids, hidden)
            guesses.append(int(logits[0, -1].argmax()))
            ids, hidden = torch.cat([ids, torch.tensor([guesses[-1:]])], 1), torch.cat([hidden, states[:, -1:]], 1)
        logits = pair.model.lm_head(pair.hidden(torch.tensor([[*known, *guesses]])))[0, len(known) - 1 :]
        best = logits.argmax(-1).tolist()
        right = next((n for n, guess in enumerate(guesses) if guess != best[n]), len(guesses))
        guessed, accepted, known = guessed + len(guesses), accepted + right, [*known, *best[: right + 1]]
        if is_recurrent and right < len(guesses):
            known.append(_next(pair, known))
    return known[len(prompt) :][:count], guessed, accepted


def _next(pair: Pair, ids: list[int]) -> int:
    return int(pair.model.lm_head(pair.hidden(torch.tensor([ids])))[0, -1].argmax())
