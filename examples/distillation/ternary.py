"""Train a small BitNet b1.58 from scratch (weights are -1, 0 or 1 times a scale), or its full-precision twin."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch
from distill import add_training_options, train
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import Linear
from torch.nn.functional import linear
from transformers import BitNetConfig, BitNetForCausalLM, PreTrainedTokenizerFast
from transformers.integrations.bitnet import pack_weights

if TYPE_CHECKING:
    from pathlib import Path

END = "<|end|>"
HEAD_DIM = 64
PACKED = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}


def main() -> None:
    """Write a trained checkpoint."""
    options = parser().parse_args()
    text = options.text.read_text(encoding="utf-8")
    tokenizer = train_tokenizer(text, options.vocab_size)
    model = new_model(options)
    train(model, lambda ids: model(ids, labels=ids, use_cache=False).loss, tokenizer.encode(text), options)
    save(model, options.out)
    tokenizer.save_pretrained(options.out)


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(description=__doc__)
    add_training_options(options)
    options.set_defaults(steps=1200, batch=1, length=512, learning_rate=2e-3)
    options.add_argument("--full-precision", action="store_true", help="train the twin, whose weights are not rounded")
    options.add_argument("--vocab-size", type=int, default=2048)
    options.add_argument("--hidden-size", type=int, default=256)
    options.add_argument("--layers", type=int, default=4)
    return options


def train_tokenizer(text: str, vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer trained on a text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    how = {"special_tokens": [END], "initial_alphabet": alphabet, "show_progress": False}
    bpe.train_from_iterator([text], trainers.BpeTrainer(vocab_size=vocab_size, **how))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token=END)


def new_model(options: argparse.Namespace) -> Any:
    """Return a model with seeded random weights."""
    torch.manual_seed(0)
    heads = options.hidden_size // HEAD_DIM
    config = BitNetConfig(
        vocab_size=options.vocab_size,
        hidden_size=options.hidden_size,
        intermediate_size=3 * options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=options.length,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=None,
        eos_token_id=0,
    )
    model = BitNetForCausalLM(config)
    # With transformers' standard deviation, 0.02, the blocks' outputs drown the tokens, and training starts slowly.
    torch.nn.init.normal_(model.model.embed_tokens.weight)
    if not options.full_precision:
        make_ternary(model)
    return model


class StraightThrough(torch.autograd.Function):
    """Return rounded values; the gradient passes to the unrounded ones (straight-through estimator)."""

    @staticmethod
    def forward(_ctx: Any, _values: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        """Return `rounded`."""
        return rounded

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of `_values`."""
        return gradient, None


class BitLinear(Linear):
    """A linear layer that rounds inputs to 8 bits and weights to ternary values, and passes gradients through both."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product of rounded weights and inputs. x: [B, S, in]."""
        values, scale = self.ternary()
        weight = StraightThrough.apply(self.weight / scale, values)
        return linear(StraightThrough.apply(x, eight_bits(x)), weight) * scale

    @torch.no_grad()
    def ternary(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ternary values [out, in], and their scale [1], the weights' mean magnitude."""
        scale = self.weight.abs().mean().clamp(min=1e-5)
        return (self.weight / scale).round().clamp(-1, 1), scale[None]


@torch.no_grad()
def eight_bits(x: torch.Tensor) -> torch.Tensor:
    """Round each token to 8 bits, scaled by its largest magnitude. x: [B, S, in]."""
    scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    return (x * scale).round().clamp(-128, 127) / scale


def make_ternary(model: Any) -> None:
    """Turn the linear layers of all blocks into BitLinear, in place."""
    for name, module in list(model.model.layers.named_modules()):
        if isinstance(module, Linear):
            rounding = BitLinear(module.in_features, module.out_features, bias=False)
            rounding.weight = module.weight
            model.model.layers.set_submodule(name, rounding)


def save(model: Any, folder: Path) -> None:
    """Write a checkpoint in transformers' format, with ternary weights in 2 bits."""
    state = {name: weight.detach() for name, weight in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, BitLinear):
            values, scale = module.ternary()
            state |= {f"{name}.weight": pack_weights(values), f"{name}.weight_scale": scale}
            model.config.quantization_config = PACKED
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
