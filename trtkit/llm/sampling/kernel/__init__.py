"""Sampling on a GPU without a sort and without the host: see README.md."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from trtkit.llm.sampling.columns import Use
from trtkit.network.aot import load_kernel_module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from trtkit.arrays import Array
    from trtkit.llm.sampling.columns import Columns

CHUNK = 4096
"""Tokens of a row that a program has."""
SPAN = 128
"""Tokens whose largest score is kept, for bounds of top-k."""
PARTS, ROW = 8, 8
"""Numbers of a chunk, and of a row, that one kernel leaves for the next."""
# A row that does not draw: the first of its largest scores.
_GREEDY = {"temperature": 1.0, "top_k": 1.0, "below": 0.0, "min_p": 0.0, "typical": 1.0, "uniform": 1.0}


def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def kernels(*, interpreted: bool = False) -> ModuleType:
    """Import `kernel.py`, for the GPU or for Triton's interpreter on the CPU. Raises ImportError without Triton."""
    return load_kernel_module(__name__, Path(__file__).parent, interpreted=interpreted)


def numbers_of(columns: Columns, slots: Array, uniform: Array) -> Array:
    """Return the numbers [R, 9] fp64 of slots [R], in the order of the kernel's NUMBERS, with uniform numbers [R]."""
    below = (1 - columns["top_p"][slots]).astype(np.float32)
    typical = columns["typical_p"][slots]
    named = {
        "temperature": columns["temperature"][slots],
        "repetition": columns["repetition_penalty"][slots],
        "presence": columns["presence_penalty"][slots],
        "frequency": columns["frequency_penalty"][slots],
        "top_k": columns["top_k"][slots],
        # Sums are compared as fp32 numbers, as transformers does: half a unit in the last place apart is equal.
        "below": np.where(below > 0, below + np.spacing(below).astype(np.float64) / 2, 0),
        "min_p": columns["min_p"][slots],
        "typical": np.where(typical < 1, typical - np.spacing(typical).astype(np.float64) / 2, 1),
        "uniform": uniform,
    }
    draws = (columns.uses[slots] & int(Use.SAMPLE)) > 0
    return np.stack([np.where(draws, named[name], _GREEDY.get(name, named[name])) for name in named], 1)


@dataclass(frozen=True)
class Tables:
    """What single tokens cost, a row each; either all tables or none.

    bias: [R, V] fp32, added to the logits. counts: [R, V] int32, for penalties: twice how often a token occurs in the
    answer, plus 1 if it occurs in the prompt. allowed: [R, ceil(V / 32)] int32; bit i of word w is 0 if token 32 w + i
    is banned.
    """

    bias: torch.Tensor | None = None
    counts: torch.Tensor | None = None
    allowed: torch.Tensor | None = None

    def __iter__(self) -> Iterator[torch.Tensor | None]:
        """Yield each table."""
        return iter((self.bias, self.counts, self.allowed))


class Workspace(NamedTuple):
    """Memory that the kernels work in, a row for each slot.

    scores: [R, V] fp32. ids: [R, V] int32, tokens that filters may leave. spans: [R, ceil(V / SPAN)] fp32, the largest
    scores. parts: [R, chunks, PARTS] fp64, of each chunk: largest score, mass, NaNs, tokens of `ids`, mass of the
    others, and the start and value of the group that wins. rows: [R, ROW] fp64, of each row: a bound, below which no
    score is drawn, a score and the furthest distance from it, the largest score, and what there is to do.
    """

    scores: torch.Tensor
    ids: torch.Tensor
    spans: torch.Tensor
    parts: torch.Tensor
    rows: torch.Tensor


def workspace(rows: int, vocab_size: int, device: torch.device) -> Workspace:
    """Return memory for as many rows."""
    return Workspace(
        torch.empty(rows, vocab_size, device=device),
        torch.empty(rows, vocab_size, dtype=torch.int32, device=device),
        torch.empty(rows, -(-vocab_size // SPAN), device=device),
        torch.empty(rows, -(-vocab_size // CHUNK), PARTS, dtype=torch.float64, device=device),
        torch.empty(rows, ROW, dtype=torch.float64, device=device),
    )


def sample(
    logits: torch.Tensor,
    numbers: torch.Tensor,
    tables: Tables | None = None,
    out: tuple[torch.Tensor, Workspace] | None = None,
    slots: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the token of each row of logits [R, V] as int64 [R], FAILED or NOTHING for a row without one.

    Everything is on one device and nothing waits for the host, so that a graph can hold the call. A row whose uniform
    number is below 0 is left out. Counts of the tokens that are drawn go up. On a CPU the kernels are interpreted, for
    tests.

    numbers: [R, 9] fp64, see `numbers_of`. out: tokens [R], and memory to work in; new ones if None.
    slots: [R], which row of numbers, tables and `out` is each row's; None for the same one.
    """
    device = logits.device
    if out is None:
        rows, vocab_size = logits.shape
        out = torch.empty(rows, dtype=torch.int64, device=device), workspace(rows, vocab_size, device)
    if slots is None:
        slots = torch.arange(len(logits), dtype=torch.int32, device=device)
    module = kernels(interpreted=device.type == "cpu")
    tokens, memory = out
    named = {"logits": logits.contiguous(), "slots": slots, "numbers": numbers, "tokens": tokens, **memory._asdict()}
    module.launch({f"{name}_ptr": tensor for name, tensor in (named | vars(tables or Tables())).items()})
    return tokens


def trial(device: torch.device, vocab_size: int) -> str:
    """Launch each variant of the kernels once on a device; return why that fails, or nothing.

    Triton compiles a launcher in C when a kernel is first launched: on a machine without a compiler that fails.
    Source: triton/runtime/build.py.
    """
    if not has_triton():
        return "Triton is not installed"
    try:
        numbers = torch.full((1, 9), -1.0, dtype=torch.float64, device=device)  # no row is drawn
        logits = torch.zeros(1, vocab_size, device=device)
        sample(logits, numbers)
        sample(logits, numbers, tables_of(1, vocab_size, device))
    except Exception as error:
        return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    return ""


def tables_of(rows: int, vocab_size: int, device: torch.device) -> Tables:
    """Return tables that change nothing."""
    words = -(-vocab_size // 32)
    return Tables(
        torch.zeros(rows, vocab_size, device=device),
        torch.zeros(rows, vocab_size, dtype=torch.int32, device=device),
        torch.full((rows, words), -1, dtype=torch.int32, device=device),
    )
