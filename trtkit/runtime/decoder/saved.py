"""A sequence's cached tokens as one block of bytes, and what says how to read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trtkit.errors import ExecutionError

_ALIGNMENT = 16  # bytes; torch views values only at multiples of their size


@dataclass(frozen=True)
class CacheArray:
    """One cache of a network. dtype: torch's name. heads: K. head_dim: H."""

    name: str
    dtype: str
    heads: int
    head_dim: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.heads * self.head_dim * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type in torch."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


@dataclass(frozen=True)
class CacheForm:
    """What a saved sequence is. model: digest of the model that computed it; empty if unknown. tokens: how many."""

    model: str
    tokens: int
    arrays: tuple[CacheArray, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the sequence, with those between arrays."""
        return sum(_aligned(array.token_bytes * self.tokens) for array in self.arrays)

    def views(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each cache [K, tokens, H] as a view of `data` [size_bytes] uint8."""
        views, start = {}, 0
        for array in self.arrays:
            size = array.token_bytes * self.tokens
            values = data[start : start + size].view(array.torch_dtype)
            views[array.name] = values.view(array.heads, self.tokens, array.head_dim)
            start += _aligned(size)
        return views

    def difference(self, own: CacheForm) -> str:
        """Say why a sequence of this form does not fit caches of the form `own`; empty if it does."""
        if self.model != own.model:
            return f"the saved sequence is of model `{self.model[:12]}`, the caches are of model `{own.model[:12]}`"
        if len(self.arrays) != len(own.arrays):
            return f"the saved sequence has {len(self.arrays)} caches, the model {len(own.arrays)}"
        for saved, array in zip(self.arrays, own.arrays, strict=True):
            if saved != array:
                return f"the saved sequence holds {_text(saved)}, the model {_text(array)}"
        return ""


@dataclass(frozen=True, eq=False)
class SavedSequence:
    """The cached tokens of a sequence on the host. data: [form.size_bytes] uint8."""

    form: CacheForm
    data: torch.Tensor

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return self.form.tokens


def check_saved(saved: SavedSequence, own: CacheForm, max_length: int) -> None:
    """Raise ExecutionError for a sequence that caches of the form `own` and `max_length` tokens cannot take."""
    check_tokens(saved.tokens, max_length)
    fault = saved.form.difference(own)
    if not fault and (saved.data.dtype != torch.uint8 or saved.data.shape != (own.size_bytes,)):
        fault = f"{saved.tokens} tokens take {own.size_bytes} bytes; the saved sequence has {saved.data.nbytes}"
    if fault:
        raise ExecutionError(fault, "KV cache", "load a sequence that was saved from the same model")


def check_tokens(count: int, max_length: int) -> None:
    """Raise ExecutionError for more tokens than a slot holds."""
    if not 0 < count <= max_length:
        what = f"a slot of {max_length} tokens cannot hold {count}"
        raise ExecutionError(what, "KV cache", "raise `llm.max_sequence_length`, or give fewer tokens")


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _text(array: CacheArray) -> str:
    return f"`{array.name}` of {array.heads} heads of {array.head_dim} in {array.dtype}"
