"""A tiny random Llama with a byte-level tokenizer and a chat template, built into a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import AutoConfig

from tests.decoder_cases import SIZES, Case
from tests.decoders import model_of
from tests.unit.runtime.text.tokenizers import CHATML, byte_level
from trtkit.config.load import load_config
from trtkit.engine.build import build_bundle

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 96
"""Tokens that a slot holds."""


def save_model(folder: Path) -> Path:
    """Write the model and its tokenizer as transformers saves them. Random weights seldom end an answer."""
    tokenizer = byte_level(chat_template=CHATML)
    sizes = {"vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.eos_token_ids[0]}
    config = {**SIZES, **sizes, "max_position_embeddings": 128}
    assert AutoConfig.for_model("llama", **config).vocab_size == tokenizer.vocab_size
    model_of(Case("tiny chat", "llama", config)).hf.save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)
    return folder


def build(folder: Path, *overrides: str) -> Path:
    """Build the model into a bundle below `folder`, with 3 slots and logits of every token; return its path."""
    (folder / "m.yaml").write_text(
        f"source: {{hf: {save_model(folder / 'model')}}}\n"
        f"llm: {{max_batch_size: 3, max_sequence_length: {LENGTH}, max_prefill_length: 32, logits: all}}\n"
    )
    config = load_config(str(folder / "m.yaml"), overrides)
    return build_bundle(config, folder / "bundle", lambda _: None).bundle.path
