"""Train a small OPT from scratch with a penalty on ReLU's outputs, so that few neurons are active."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from distill import add_training_options, train
from ternary import train_tokenizer
from transformers import OPTConfig, OPTForCausalLM

HEAD_DIM = 64


def main() -> None:
    """Write a trained checkpoint."""
    options = parser().parse_args()
    text = options.text.read_text(encoding="utf-8")
    tokenizer = train_tokenizer(text, options.vocab_size)
    ids = tokenizer.encode(text)
    model = new_model(options)
    train(model, Penalized(model, options.penalty), ids, options)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(description=__doc__)
    add_training_options(options)
    options.set_defaults(steps=400, batch=2, length=256, learning_rate=2e-3)
    options.add_argument("--penalty", type=float, default=5.0, help="nats for a mean activation of 1; 0 for none")
    options.add_argument("--vocab-size", type=int, default=2048)
    options.add_argument("--hidden-size", type=int, default=256)
    options.add_argument("--layers", type=int, default=4)
    return options


def new_model(options: argparse.Namespace) -> Any:
    """Return a model with seeded random weights."""
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=options.vocab_size,
        hidden_size=options.hidden_size,
        word_embed_proj_dim=options.hidden_size,
        ffn_dim=8 * options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden_size // HEAD_DIM,
        max_position_embeddings=2 * options.length,
        dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return OPTForCausalLM(config)


class Penalized:
    """The loss of windows plus a penalty on the mean activation of all layers' neurons."""

    def __init__(self, model: Any, penalty: float) -> None:
        self._model, self._penalty = model, penalty
        self._means: list[torch.Tensor] = []
        for layer in model.model.decoder.layers:
            layer.fc2.register_forward_pre_hook(lambda _, inputs: self._means.append(inputs[0].mean()))

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the loss and the penalty, in nats. ids: [B, S]."""
        self._means.clear()
        loss = self._model(ids, labels=ids, use_cache=False).loss
        return loss + self._penalty * torch.stack(self._means).mean()


if __name__ == "__main__":
    main()
