"""A small T5 with random weights and a byte tokenizer, saved as transformers does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import T5ForConditionalGeneration

SPECIAL = ("<pad>", "</s>", "<unk>")
VOCAB, LENGTH = 270, 24
CONFIG = {
    "model_type": "t5", "vocab_size": VOCAB, "d_model": 36, "d_kv": 10, "d_ff": 52, "num_layers": 2,
    "num_decoder_layers": 3, "num_heads": 3, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
    "n_positions": LENGTH, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def save(folder: Path, fields: dict[str, Any] | None = None, **changes: Any) -> T5ForConditionalGeneration:
    """Save the model with its tokenizer; return it. fields: changes to the saved config.json."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**CONFIG, **changes})
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    for name, weight in model.named_parameters():
        is_matrix = weight.dim() > 1
        deviation = 2.0 if "EncDecAttention" in name else 1.3  # large, so that tokens depend on the source
        width = weight.shape[-1] if "relative" not in name else 1
        width *= config.d_kv if name.endswith(".q.weight") else 1  # T5 does not scale scores
        torch.nn.init.normal_(weight, 0.0 if is_matrix else 1.0, deviation * width**-0.5 if is_matrix else 0.3)
    torch.nn.init.normal_(model.shared.weight)
    model.save_pretrained(folder)
    if fields is not None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    _tokenizer().save_pretrained(folder)
    return load(folder)


def load(folder: Path) -> T5ForConditionalGeneration:
    """Return transformers' model from a folder."""
    return AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()


def _tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that ends texts with `</s>`, like T5's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
