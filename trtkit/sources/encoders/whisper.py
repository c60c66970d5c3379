"""Whisper's encoder, with every decoder layer's projections of its output."""

from pathlib import Path

import torch

from trtkit.sources.huggingface.folder import open_config
from trtkit.sources.vision_language.load import load_weights


class WhisperAudio(torch.nn.Module):
    """Maps log-mel features [B, bins, frames] to each decoder layer's keys and values, [B, N, frames / 2, H] each.

    HF: `WhisperEncoder`, and `encoder_attn.k_proj` and `v_proj` of `WhisperDecoderLayer`.
    """

    def __init__(self, folder: str) -> None:
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        super().__init__()
        config = open_config(folder)
        config._attn_implementation = "eager"
        self.encoder, self.decoder = WhisperEncoder(config), torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(_Projections(config.d_model) for _ in range(config.decoder_layers))
        self._heads, self._count = config.decoder_attention_heads, config.decoder_layers
        load_weights(self, Path(folder))

    def forward(self, input_features: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the key and value of layer 0, of layer 1, and so on."""
        hidden = self.encoder(input_features).last_hidden_state
        outputs: list[torch.Tensor] = []
        for index in range(self._count):
            attention = self.decoder.get_submodule(f"layers.{index}.encoder_attn")
            for project in (attention.get_submodule("k_proj"), attention.get_submodule("v_proj")):
                heads = project(hidden).unflatten(-1, (self._heads, -1))
                outputs.append(heads.transpose(1, 2))
        return tuple(outputs)


class _Projections(torch.nn.Module):
    """One decoder layer's projections of the encoder's hidden states, named as in the checkpoint."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder_attn = torch.nn.Module()
        self.encoder_attn.k_proj = torch.nn.Linear(size, size, bias=False)
        self.encoder_attn.v_proj = torch.nn.Linear(size, size)
