"""A small Whisper with random weights for short audio, saved as transformers does."""

from __future__ import annotations

import json
import wave
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.arrays import Array

RATE, SECONDS = 16_000, 1
PLACES = 50  # encoder positions, each of two frames of 10 ms
VOCAB, START = 300, 260
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>",
           "<|notimestamps|>"]  # fmt: skip
IDS = {token: START + index for index, token in enumerate(SPECIAL)}
CONFIG = {
    "vocab_size": VOCAB, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 60, "decoder_ffn_dim": 76, "max_source_positions": PLACES,
    "max_target_positions": 40, "num_mel_bins": 12, "pad_token_id": IDS["<|endoftext|>"],
    "bos_token_id": IDS["<|endoftext|>"], "eos_token_id": IDS["<|endoftext|>"],
    "decoder_start_token_id": IDS["<|startoftranscript|>"], "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
GENERATION: dict[str, Any] = {
    "is_multilingual": True,
    "lang_to_id": {token: IDS[token] for token in ("<|en|>", "<|de|>")},
    "task_to_id": {"transcribe": IDS["<|transcribe|>"], "translate": IDS["<|translate|>"]},
    "no_timestamps_token_id": IDS["<|notimestamps|>"],
    "decoder_start_token_id": IDS["<|startoftranscript|>"],
    "eos_token_id": IDS["<|endoftext|>"],
    "pad_token_id": IDS["<|endoftext|>"],
    "suppress_tokens": [7, 9, 11, *range(START + len(SPECIAL), VOCAB)],  # timestamps, where transformers would cut
    "begin_suppress_tokens": [32, IDS["<|endoftext|>"]],
    "max_length": 40,
}


def save(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> WhisperForConditionalGeneration:
    """Save the model with its processor and tokenizer; return it."""
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(**{**CONFIG, **changes})).eval()
    for name, weight in model.named_parameters():
        if name.endswith("encoder.embed_positions.weight"):
            continue  # sinusoidal positions
        is_matrix = weight.dim() > 1
        center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        is_heard = ".encoder_attn." in name or ".conv" in name  # large, so that tokens depend on the audio
        deviation = 3.0 if is_heard else 1.5
        torch.nn.init.normal_(weight, center, deviation * weight[0].numel() ** -0.5 if is_matrix else 0.3)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION if generation is None else generation))
    extractor = WhisperFeatureExtractor(
        feature_size=int(model.config.num_mel_bins), chunk_length=SECONDS, sampling_rate=RATE
    )
    extractor.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()


def features(folder: Path, samples: Array) -> torch.Tensor:
    """Return transformers' features [1, bins, frames] of audio."""
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    return extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features


def sound(seed: int, seconds: float = SECONDS) -> Array:
    """Return samples [N] of a falling or rising tone in noise."""
    generator, time = np.random.default_rng(seed), np.arange(int(RATE * seconds)) / RATE
    pitch = generator.uniform(100, 3000) + generator.uniform(-900, 900) * time
    return (0.5 * np.sin(2 * np.pi * pitch * time) + 0.02 * generator.standard_normal(len(time))).astype(np.float32)


def write_wav(path: Path, samples: Array, rate: int = RATE) -> None:
    """Write 16-bit mono samples."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def _tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    vocabulary |= {f"<unused{index}>": index for index in range(len(alphabet), START)}
    vocabulary |= IDS | {f"<|{index / 50:.2f}|>": index for index in range(START + len(SPECIAL), VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", additional_special_tokens=SPECIAL[1:]
    )
