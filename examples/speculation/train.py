"""Train an EAGLE-3 head, which guesses a Llama's next tokens from its hidden states, on a text."""

from __future__ import annotations

import argparse
import time
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from head import Head
from torch.nn.functional import linear
from torch.optim.lr_scheduler import OneCycleLR

from trtkit.config.load import load_config
from trtkit.sources.decoder_source import open_decoder_source
from trtkit.sources.huggingface.model import causal_lm, encoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

Options = argparse.Namespace
DECAY = 0.8
"""Weight of a guess's loss relative to the previous guess's."""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model", help="a config's name or file, as for `trtkit build`")
    options.add_argument("text", type=Path, help="UTF-8 text to train on")
    options.add_argument("out", type=Path, help="folder for the head")
    options.add_argument("--tokens", type=int, default=131072, help="most tokens to read")
    options.add_argument("--draft-tokens", type=int, default=6144, help="most frequent tokens, which it can guess")
    options.add_argument("--guesses", type=int, default=3, help="in a chain")
    options.add_argument("--steps", type=int, default=240)
    options.add_argument("--batch", type=int, default=4, help="windows of the text in a step")
    options.add_argument("--length", type=int, default=256, help="tokens in a window")
    options.add_argument("--learning-rate", type=float, default=1.5e-3, help="the highest; it rises first, then falls")
    return options


@torch.inference_mode()
def read(model: Any, windows: Tensor, layers: tuple[int, ...]) -> Tensor:
    """Run the model on windows [W, S] of the text; return hidden states [W, S, 4 D], ending with the last layer's.

    layers: the layers whose inputs to keep.
    """
    began, states = time.monotonic(), []
    for batch in windows.split(8):
        with bf16_products():
            output = model.model(batch, use_cache=False, output_hidden_states=True)
        kept = [*(output.hidden_states[layer] for layer in layers), output.last_hidden_state]
        states.append(torch.cat(kept, -1).bfloat16())
    print(f"{windows.numel()} tokens read in {time.monotonic() - began:.0f} s", flush=True)
    return torch.cat(states)


def losses(head: Head, tokens: Tensor, states: Tensor, guesses: int) -> tuple[Tensor, Tensor]:
    """Return each guess's cross-entropy with the model's next-token distribution, and how often both agree.

    tokens: [B, S]. states: [B, S, 4 D].
    """
    count, size = tokens.shape[1] - guesses, head.config.hidden_size
    with torch.no_grad():
        wanted = linear(states[..., -size:], head.lm_head.weight).float()
    loss, right = [], []
    for guess, logits in enumerate(head(tokens[:, 1:], states[:, :count, :-size], guesses), 1):
        targets = wanted[:, guess : guess + count]
        loss.append(-(targets.softmax(-1) * logits.float().log_softmax(-1)).sum(-1).mean())
        right.append((targets.argmax(-1) == logits.argmax(-1)).float().mean())
    return torch.stack(loss), torch.stack(right)


def train(head: Head, tokens: Tensor, states: Tensor, options: Options) -> None:
    """Train on windows [W, S] and their hidden states; print the losses now and then."""
    weights = [weight for weight in head.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), weight_decay=0.01)
    rate = OneCycleLR(optimizer, options.learning_rate, total_steps=options.steps + 1, pct_start=0.1)
    decay, began = DECAY ** torch.arange(options.guesses), time.monotonic()
    for step, rows in zip(range(1, options.steps + 1), batches(len(tokens), options.batch), strict=False):
        with bf16_products():
            loss, right = losses(head, tokens[rows], states[rows].float(), options.guesses)
        (loss * decay).sum().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        if step in (1, options.steps) or step % 10 == 0:
            shares = ", ".join(f"{share:.0%}" for share in right)
            print(f"step {step} of {options.steps}: loss {loss.mean():.3f}, right {shares}, ", end="")
            print(f"{time.monotonic() - began:.0f} s", flush=True)


def bf16_products() -> torch.autocast:
    """Return a context that runs matrix products in bf16 if the CPU supports it; emulated bf16 is far slower."""
    can = torch.cpu.get_capabilities()
    is_native = any(can.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))
    return torch.autocast("cpu", torch.bfloat16, enabled=is_native)


def batches(count: int, size: int) -> Iterator[Tensor]:
    """Yield batches of window indices forever, in random order."""
    return chain.from_iterable(torch.randperm(count).split(size) for _ in repeat(None))


def main() -> None:
    """Write a trained head."""
    options = parser().parse_args()
    torch.manual_seed(0)
    source = open_decoder_source(load_config(options.model).source)
    model = causal_lm(source).requires_grad_(False)
    ids = encoder(source).encode(options.text.read_text(encoding="utf-8"))[: options.tokens]
    windows = torch.tensor(ids[: len(ids) // options.length * options.length]).view(-1, options.length)
    counts = torch.bincount(windows.flatten(), minlength=model.config.vocab_size)
    guessable = counts.argsort(descending=True)[: options.draft_tokens].sort().values
    last = len(model.model.layers)
    head = Head(model.config, model.get_input_embeddings().weight, guessable, (2, last // 2, last - 3))
    head.start_from(model)
    train(head, windows, read(model, windows, head.layers), options)
    head.save(options.out)


if __name__ == "__main__":
    main()
