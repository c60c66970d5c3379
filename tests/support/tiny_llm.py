"""A tiny Llama with a tokenizer and a chat template, saved as transformers does."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trtkit import SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import ModelConfig

TEXT = "the quick brown fox jumps over the lazy dog, and says: 1, 2, 3! do not go gentle into that good night. " * 3
TEMPLATE = (
    "{% for message in messages %}"
    "{% if not message.role %}{{ raise_exception('a role is missing') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|pad|>", "<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
OF_BLOCKS = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
"""Sizes divisible by quantization blocks of 32, 64 and 128."""
END = SPECIAL.index("<|end|>")
PROMPTS = ["the quick brown", "do not go gentle into", "1, 2, 3", "the lazy dog"]
GREEDY = SamplingParams(temperature=0, max_tokens=12)
torch.set_num_threads(1)  # tests run in parallel


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with 320 tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", bos_token="<|begin|>")
    wrapped.chat_template = TEMPLATE
    return wrapped


def save(folder: Path, seed: int = 0, **changes: int) -> Path:
    """Write config, random weights and tokenizer into `folder`."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6}
    sizes |= {"num_key_value_heads": 2, "vocab_size": len(tokenizer()), "max_position_embeddings": 256}
    config = LlamaConfig(**{**sizes, **changes}, eos_token_id=END, bos_token_id=1, pad_token_id=0)
    model = LlamaForCausalLM(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def save_to_quantize(folder: Path) -> Path:
    """Save a model of sizes OF_BLOCKS, a calibration text, and a config that quantizes with it; return the config."""
    save(folder / "model", **OF_BLOCKS)
    (folder / "text.txt").write_text(TEXT * 12, encoding="utf-8")
    config = folder / "m.yaml"
    config.write_text(
        "source: {hf: model}\nprecision: fp32\n"
        "llm: {max_batch_size: 2, max_sequence_length: 96, max_prefill_length: 48, logits: all}\n"
        "quantize: {method: int8_wo, calibration: {data: text.txt, samples: 4, length: 64}}\n"
    )
    return config


def config_of(folder: Path, *overrides: str) -> ModelConfig:
    """Return the config that `save_to_quantize` wrote into `folder`."""
    return load_config(str(folder / "m.yaml"), overrides)


def build(folder: Path, name: str, options: str = "", **changes: int) -> Path:
    """Build a bundle with logits of all tokens. options: more of `llm`, as YAML. changes: to the model's config."""
    save(folder / f"{name}-hf", **changes)
    sizes = f"max_batch_size: 4, max_sequence_length: 96, max_prefill_length: 16, logits: all, {options}"
    (folder / f"{name}.yaml").write_text(f"source: {{hf: {folder}/{name}-hf}}\nllm: {{{sizes}}}\n")
    return build_bundle(load_config(str(folder / f"{name}.yaml")), folder / name, new_runner()).bundle.path
