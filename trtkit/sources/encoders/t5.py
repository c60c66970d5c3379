"""T5's encoder, with every decoder layer's projections of its output."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.vision_language.load import load_weights

_STACKS = {"t5": "T5Stack", "mt5": "MT5Stack", "umt5": "UMT5Stack"}


class T5Text(torch.nn.Module):
    """Maps ids [B, S] to each decoder layer's keys and values, [B, N, S, H] each.

    length: of the longest text. HF: `T5Stack` as the encoder, and `EncDecAttention.k` and `v` of
    `T5LayerCrossAttention`; the same in mT5 and UMT5.
    """

    def __init__(self, folder: str, length: int) -> None:
        super().__init__()
        config = open_config(folder)
        config.is_decoder = config.use_cache = False
        config._attn_implementation = "eager"
        module = importlib.import_module(f"transformers.models.{config.model_type}.modeling_{config.model_type}")
        self.encoder = getattr(module, _STACKS[config.model_type])(config)
        self.shared = self.encoder.embed_tokens
        del self.encoder.embed_tokens  # checkpoints call it `shared`
        self.decoder = torch.nn.Module()
        sizes = (config.d_model, config.num_heads * config.d_kv)
        self.decoder.block = torch.nn.ModuleList(_block(*sizes) for _ in range(config.num_decoder_layers))
        self._heads, self._count = config.num_heads, config.num_decoder_layers
        load_weights(self, Path(folder))
        for attention in self.encoder.modules():
            if getattr(attention, "has_relative_attention_bias", False):
                _tabulate(attention, length)

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the key and value of layer 0, of layer 1, and so on."""
        hidden = self.encoder(inputs_embeds=self.shared(input_ids)).last_hidden_state
        outputs: list[torch.Tensor] = []
        for index in range(self._count):
            attention = self.decoder.get_submodule(f"block.{index}.layer.1.EncDecAttention")
            for project in (attention.get_submodule("k"), attention.get_submodule("v")):
                outputs.append(project(hidden).unflatten(-1, (self._heads, -1)).transpose(1, 2))
        return tuple(outputs)


@torch.no_grad()
def _tabulate(attention: torch.nn.Module, length: int) -> None:
    """Make a module look up distances' scores in a table, since 16 bits would put far tokens into wrong buckets."""
    compute: Callable[..., torch.Tensor] = getattr(attention, "compute_bias")  # noqa: B009
    ahead, back = (compute(1, length, past_seen_tokens=seen)[0, :, 0] for seen in (0, length - 1))
    attention.register_buffer("scores", torch.cat([back, ahead[:, 1:]], 1).T.contiguous(), persistent=False)

    def looked_up(query_length: int, key_length: int, **_: Any) -> torch.Tensor:
        distances = torch.arange(key_length)[None] - torch.arange(query_length)[:, None] + length - 1
        scores: torch.Tensor = attention.get_buffer("scores")[distances].permute(2, 0, 1)[None]
        return scores

    attention.__dict__["compute_bias"] = looked_up


def _block(size: int, inner: int) -> torch.nn.Module:
    """Return one decoder layer's projections of the encoder's hidden states, named as in the checkpoint."""
    projections = torch.nn.Module()
    projections.k, projections.v = (torch.nn.Linear(size, inner, bias=False) for _ in "kv")
    cross, block = torch.nn.Module(), torch.nn.Module()
    cross.EncDecAttention = projections
    block.layer = torch.nn.ModuleList([torch.nn.Module(), cross])
    return block
