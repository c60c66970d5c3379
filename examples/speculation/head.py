"""An EAGLE-3 head in torch for training: it computes a chain of guesses after every token of a text at once.

Source: https://arxiv.org/abs/2503.01840 (training-time test).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, silu

if TYPE_CHECKING:
    from pathlib import Path

OUTSIDE = ("fc.", "norm.", "lm_head.")
FIELDS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
FIELDS += ("rms_norm_eps", "hidden_act", "vocab_size", "max_position_embeddings", "rope_parameters")


class Norm(nn.Module):
    """An RMS norm."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x [..., D] in fp32."""
        return rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Attention to the text up to a token and to the guesses after it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.groups, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(2 * config.hidden_size, heads * self.size, bias=False)
            for heads in (self.heads, self.groups, self.groups)
        )
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)
        theta = float(config.rope_parameters["rope_theta"])
        self.frequencies = theta ** -(torch.arange(0, self.size, 2).float() / self.size)

    def forward(self, x: Tensor, chain: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Attend from x [B, S, 2 D]. chain: keys and values [B, N, S, H] of the text, then of each earlier guess."""
        count = x.shape[1]
        positions = torch.arange(count) + len(chain)
        q, k, v = (
            project(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self._rotate(q, positions), self._rotate(k, positions)
        k, v = (each.repeat_interleave(self.heads // self.groups, 1) for each in (k, v))
        chain.append((k, v))
        (text_keys, text_values), guesses = chain[0], chain[1:]
        later = torch.ones(count, count, dtype=torch.bool).triu(1)
        scores = [(q @ text_keys.transpose(-1, -2)).masked_fill(later, -torch.inf)]
        scores += [(q * key).sum(-1, keepdim=True) for key, _ in guesses]
        shares = (torch.cat(scores, -1) * self.size**-0.5).softmax(-1, dtype=torch.float32).to(v.dtype)
        attended = shares[..., :count] @ text_values
        for index, (_, value) in enumerate(guesses):
            attended = attended + shares[..., count + index, None] * value
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = (positions[:, None] * self.frequencies).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * angles.cos().to(x.dtype) + torch.cat([-second, first], -1) * angles.sin().to(x.dtype)


class Head(nn.Module):
    """An EAGLE-3 head for a Llama.

    config: the model's. table: the model's embedding [V, D]. ids: tokens [V'] that the head can guess, ascending.
    layers: the layers whose inputs it reads.
    """

    def __init__(self, config: Any, table: Tensor, ids: Tensor, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.config, self.table, self.ids, self.layers = config, table.detach(), ids, layers
        size, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        self.fc = nn.Linear(len(layers) * size, size, bias=False)
        self.input_layernorm, self.hidden_norm, self.norm = Norm(size, eps), Norm(size, eps), Norm(size, eps)
        self.self_attn, self.post_attention_layernorm = Attention(config), Norm(size, eps)
        self.mlp = nn.ModuleDict({name: nn.Linear(size, inner, bias=False) for name in ("gate_proj", "up_proj")})
        self.mlp["down_proj"] = nn.Linear(inner, size, bias=False)
        self.lm_head = nn.Linear(size, len(ids), bias=False).requires_grad_(False)

    @torch.no_grad()
    def start_from(self, model: Any) -> None:
        """Copy the model's LM head, which is not trained, final norm and last MLP."""
        last, size = model.model.layers[-1], self.config.hidden_size
        self.lm_head.weight.copy_(model.get_output_embeddings().weight[self.ids])
        self.fc.weight.zero_()[:, -size:].copy_(torch.eye(size))
        self.norm.weight.copy_(model.model.norm.weight)
        self.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
        for name, linear_layer in self.mlp.items():
            linear_layer.weight.copy_(getattr(last.mlp, name).weight)

    def forward(self, tokens: Tensor, states: Tensor, guesses: int) -> list[Tensor]:
        """Return the logits [B, S, V'] of each guess.

        tokens: [B, S + guesses - 1], each one the successor of the token with its hidden states. states: [B, S, 3 D].
        """
        hidden, chain, logits = self.fc(states), [], []
        for guess in range(guesses):
            embedded = embedding(tokens[:, guess : guess + states.shape[1]], self.table)
            joined = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
            hidden = hidden + self.self_attn(joined, chain)
            x, mlp = self.post_attention_layernorm(hidden), self.mlp
            hidden = hidden + mlp["down_proj"](silu(mlp["gate_proj"](x)) * mlp["up_proj"](x))
            logits.append(linear(self.norm(hidden), self.lm_head.weight))
        return logits

    def save(self, folder: Path) -> None:
        """Write the head in SafeAILab's format, in fp16."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {
            name if name.startswith(OUTSIDE) else f"midlayer.{name}": weight.detach().half().contiguous()
            for name, weight in self.state_dict().items()
        }
        weights["d2t"] = self.ids - torch.arange(len(self.ids))
        weights["t2d"] = torch.isin(torch.arange(self.config.vocab_size), self.ids)
        save_file(weights, folder / "model.safetensors")
        fields = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            **{name: getattr(self.config, name) for name in FIELDS},
            "draft_vocab_size": len(self.ids),
            "eagle_aux_hidden_state_layer_ids": list(self.layers),
        }
        (folder / "config.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")
