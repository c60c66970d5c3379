"""Bundles of every decoder family, and greedy steps that mix slots.

Rank processes import this only for `greedy`, so imports of transformers belong inside functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.llm.execution import Call

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tests.support.decoder_case import Case
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.llm.execution import DecoderExecution


def config_of(case: Case, folder: Path, precision: str = "fp32", **options: Any) -> ModelConfig:
    """Save a case's model below `folder`; return its config. options: of `llm`."""
    from tests.support import tiny_llm
    from tests.support.decoders import model_of
    from trtkit.config.schema import ModelConfig

    model_of(case).hf.save_pretrained(folder / "model")
    tiny_llm.tokenizer().save_pretrained(folder / "model")
    sizes = {"max_batch_size": 3, "max_sequence_length": 32, "max_prefill_length": 8, **options}
    return ModelConfig.model_validate({"source": {"hf": str(folder / "model")}, "precision": precision, "llm": sizes})


def bundle_of(case: Case, folder: Path, precision: str = "fp32", **options: Any) -> Bundle:
    """Build the bundle of `config_of`."""
    from trtkit.builder.build import build_bundle
    from trtkit.jobs.runner import new_runner

    config = config_of(case, folder, precision, **options)
    return build_bundle(config, folder / "bundle", new_runner(), use_cache=False).bundle


def greedy(execution: DecoderExecution, prompts: np.ndarray, steps: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the tokens and logits of greedy steps after prompts [R, S]. Every other step runs slot 0 alone, last."""
    rows, length = prompts.shape
    starts, counts = np.zeros(rows, np.int64), np.full(rows, length)
    logits = _last(execution.forward(Call(0, prompts, starts, counts)))
    tokens, all_logits = [], [logits]
    for step in range(steps):
        tokens.append(logits.argmax(-1))
        starts = np.full(rows, length + step)
        first = step % 2
        ids = tokens[-1][first:, None]
        call = Call(first, ids, starts[first:], np.ones(rows - first, np.int64))
        logits = logits.copy()
        logits[first:] = _last(execution.forward(call))
        if first:
            one = Call(0, tokens[-1][:1, None], starts[:1], np.ones(1, np.int64))
            logits[:1] = _last(execution.forward(one))
        all_logits.append(logits)
    return tokens, all_logits


def _last(logits: torch.Tensor) -> np.ndarray:
    """Return a copy of the logits of each row's last token [R, V]."""
    return (logits[:, -1] if logits.dim() == 3 else logits).cpu().numpy().copy()
