"""Train a model on a text; compressed models are trained to match the original's next-token distributions."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import kl_div
from torch.optim.lr_scheduler import OneCycleLR

from trtkit.config.load import load_config
from trtkit.sources.decoder_source import open_decoder_source
from trtkit.sources.huggingface.model import causal_lm, encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Options = argparse.Namespace


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the common options of scripts that compress a model."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("model", help="a config's name or file, as for `trtkit build`")
    add_training_options(options)
    return options


def add_training_options(options: argparse.ArgumentParser) -> None:
    """Add the options of `train`."""
    options.add_argument("text", type=Path, help="UTF-8 text to train on")
    options.add_argument("out", type=Path, help="folder for the checkpoint")
    options.add_argument("--steps", type=int, default=80, help="0 for no training")
    options.add_argument("--batch", type=int, default=4, help="windows of the text in a step")
    options.add_argument("--length", type=int, default=256, help="tokens in a window")
    options.add_argument("--learning-rate", type=float, default=1e-4, help="the highest; it rises first, then falls")


def open_model(name: str) -> tuple[Any, Any]:
    """Return transformers' model, in fp32, and its tokenizer."""
    source = open_decoder_source(load_config(name).source)
    model = causal_lm(source)
    model.config.architectures = [type(model).__name__]
    return model, encoder(source)


def distill(student: Any, teacher: Any, ids: list[int], options: Options) -> None:
    """Train all weights except embedding and LM head, and print the divergence now and then."""
    for fixed in (student.get_input_embeddings(), student.get_output_embeddings()):
        fixed.requires_grad_(False)
    train(student, lambda batch: divergence(student, teacher, batch), ids, options)


def train(model: Any, loss_of: Callable[[torch.Tensor], torch.Tensor], ids: list[int], options: Options) -> None:
    """Train the weights that require gradients; print the loss now and then. loss_of: of windows [B, S], in nats."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, weight_decay=0.0)
    rate = OneCycleLR(optimizer, options.learning_rate, total_steps=options.steps + 1, pct_start=0.1)
    model.train()
    began = time.monotonic()
    for step, batch in zip(range(1, options.steps + 1), batches(ids, options), strict=False):
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
        if step in (1, options.steps) or step % 10 == 0:
            seconds = time.monotonic() - began
            print(f"step {step} of {options.steps}: loss {loss:.4f} nats, {seconds:.0f} s", flush=True)
    model.eval()


def batches(ids: list[int], options: Options) -> Iterator[torch.Tensor]:
    """Yield windows [B, S] of a text forever, in a seeded random order."""
    windows = torch.tensor(ids[: len(ids) // options.length * options.length]).view(-1, options.length)
    generator = torch.Generator().manual_seed(0)
    while True:
        yield from windows[torch.randperm(len(windows), generator=generator)].split(options.batch)


def divergence(student: Any, teacher: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the student's mean KL divergence from the teacher's next-token distributions, in nats. ids: [B, S]."""
    with bf16_products():
        with torch.no_grad():
            wanted = teacher(ids, use_cache=False).logits
        logits = student(ids, use_cache=False).logits
    wanted, logits = (each.float().flatten(0, 1).log_softmax(-1) for each in (wanted, logits))
    return kl_div(logits, wanted, reduction="batchmean", log_target=True)


def bf16_products() -> torch.autocast:
    """Return a context that runs matrix products in bf16 if the CPU supports it; emulated bf16 is far slower."""
    can = torch.cpu.get_capabilities()
    is_native = any(can.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16"))
    return torch.autocast("cpu", torch.bfloat16, enabled=is_native)
