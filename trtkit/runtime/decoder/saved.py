"""A sequence's cached tokens as one block of bytes, and what says how to read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

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


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _text(array: CacheArray) -> str:
    return f"`{array.name}` of {array.heads} heads of {array.head_dim} in {array.dtype}"
