"""Names of blocks of tokens by what they hold and all that comes before them."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEY_BYTES = 32
START = b""
"""The key before the first block."""


def next_key(parent: bytes, content: bytes) -> bytes:
    """Return the key of a block with this content after the block `parent`."""
    return blake2b(len(parent).to_bytes(1, "little") + parent + content, digest_size=_KEY_BYTES).digest()


def block_keys(contents: Iterable[bytes]) -> list[bytes]:
    """Return the keys of a sequence's blocks, in order, by the content of each."""
    keys, parent = [], START
    for content in contents:
        parent = next_key(parent, content)
        keys.append(parent)
    return keys
