"""A sequence's cached tokens as one block of bytes, and its layout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from trtkit.errors import ExecutionError
from trtkit.models.context import ALL_POSITIONS, ContextShare

if TYPE_CHECKING:
    from trtkit.arrays import Array

_ALIGNMENT = 16  # bytes; torch views values only at multiples of their size


@dataclass(frozen=True)
class CacheArray:
    """One cache of a network, or a recurrent state, whose size does not depend on the tokens.

    dtype: torch's name. heads: K. head_dim: H. For a state: all axes but the last, and the last. context: the share of
    a sequence's positions that it holds.
    """

    name: str
    dtype: str
    heads: int
    head_dim: int
    is_state: bool = False
    context: ContextShare = ALL_POSITIONS

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Return the shape that holds its share of `tokens` tokens."""
        return (self.heads, self.head_dim) if self.is_state else (self.heads, self.context.count(tokens), self.head_dim)

    def size_bytes(self, tokens: int) -> int:
        """Return the bytes that hold `tokens` tokens."""
        return math.prod(self.shape(tokens)) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """Data type in torch."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


@dataclass(frozen=True)
class CacheForm:
    """Layout of a saved sequence.

    model: digest of the model that computed it; empty if unknown. tokens: their number.
    """

    model: str
    tokens: int
    arrays: tuple[CacheArray, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the sequence, with gaps between arrays."""
        return sum(_aligned(array.size_bytes(self.tokens)) for array in self.arrays)

    def saved(self, data: Array) -> SavedSequence | None:
        """Return the sequence in bytes [N] uint8; None if N is not its size."""
        return SavedSequence(self, torch.from_numpy(data)) if len(data) == self.size_bytes else None

    def views(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each cache [K, tokens, H] and state as a view of `data` [size_bytes] uint8."""
        views, start = {}, 0
        for array in self.arrays:
            size = array.size_bytes(self.tokens)
            values = data[start : start + size].view(array.torch_dtype)
            views[array.name] = values.view(array.shape(self.tokens))
            start += _aligned(size)
        return views

    def clear_gaps(self, data: torch.Tensor) -> None:
        """Zero the gaps between the arrays of `data` [size_bytes] uint8, whose memory may be uninitialized."""
        start = 0
        for array in self.arrays:
            end = start + array.size_bytes(self.tokens)
            start += _aligned(end - start)
            data[end:start] = 0

    def block_views(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each cache [N, K, tokens, H] as a view of N blocks, `data` [N, size_bytes] uint8.

        8-bit values are returned as integers, which torch can gather and scatter.
        """
        views, start = {}, 0
        for array in self.arrays:
            size, dtype = array.size_bytes(self.tokens), array.torch_dtype
            values = data[:, start : start + size].view(torch.int8 if dtype.itemsize == 1 else dtype)
            views[array.name] = values.view(len(data), *array.shape(self.tokens))
            start += _aligned(size)
        return views

    def difference(self, expected: CacheForm) -> str:
        """Return why a sequence of this layout does not fit caches of layout `expected`; empty if it does."""
        if self.model != expected.model:
            return (
                f"the saved sequence is of model `{self.model[:12]}`, the caches are of model `{expected.model[:12]}`"
            )
        if len(self.arrays) != len(expected.arrays):
            return f"the saved sequence has {len(self.arrays)} caches, the model {len(expected.arrays)}"
        for saved, array in zip(self.arrays, expected.arrays, strict=True):
            if saved != array:
                return f"the saved sequence holds {_text(saved)}, the model {_text(array)}"
        return ""


@dataclass(frozen=True, eq=False)
class SavedSequence:
    """A sequence's cached tokens on the host. data: [form.size_bytes] uint8."""

    form: CacheForm
    data: torch.Tensor

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.form.tokens

    def first(self, tokens: int) -> SavedSequence:
        """Return its first tokens as a sequence of their own; it must have at least as many, and no states."""
        if tokens == self.tokens:
            return self
        form = replace(self.form, tokens=tokens)
        data = torch.zeros(form.size_bytes, dtype=torch.uint8)
        whole = self.form.views(self.data)
        for name, values in form.views(data).items():
            values.copy_(whole[name][:, : values.shape[1]])
        return SavedSequence(form, data)


def check_saved(saved: SavedSequence, expected: CacheForm, max_length: int) -> None:
    """Raise ExecutionError if a sequence does not fit caches of layout `expected` and `max_length` tokens."""
    check_tokens(saved.tokens, max_length)
    fault = saved.form.difference(expected)
    if not fault and (saved.data.dtype != torch.uint8 or saved.data.shape != (expected.size_bytes,)):
        fault = f"{saved.tokens} tokens take {expected.size_bytes} bytes; the saved sequence has {saved.data.nbytes}"
    if fault:
        raise ExecutionError(fault, "KV cache", "load a sequence that was saved from the same model")


def check_tokens(count: int, max_length: int) -> None:
    """Raise ExecutionError if `count` tokens do not fit a slot."""
    if not 0 < count <= max_length:
        what = f"a slot of {max_length} tokens cannot hold {count}"
        raise ExecutionError(what, "KV cache", "raise `llm.max_sequence_length`, or give fewer tokens")


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _text(array: CacheArray) -> str:
    heads = "rows" if array.is_state else "heads"
    text, context = f"`{array.name}` of {array.heads} {heads} of {array.head_dim} in {array.dtype}", array.context
    if context.is_whole:
        return text
    return f"{text}, part {context.share.index + 1} of {context.share.count} in blocks of {context.block} tokens"
