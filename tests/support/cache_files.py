"""Blocks for cache files, and a process that writes them until it is killed."""

from __future__ import annotations

import sys
from hashlib import blake2b
from pathlib import Path

IDENTITY, LIMIT, SIZE = bytes(32), 3_000_000, 200_000


def preimage_of(number: int) -> bytes:
    """Return the bytes whose digest is a block's key."""
    return number.to_bytes(8, "little")


def key_of(number: int) -> bytes:
    """Return the key of a block."""
    return blake2b(preimage_of(number), digest_size=32).digest()


def block(number: int) -> bytes:
    """Return the block with a number, which determines its content."""
    return key_of(number) * (SIZE // 32)


if __name__ == "__main__":
    from trtkit.llm.cache.host import FileTier

    files, number = FileTier(Path(sys.argv[1]), LIMIT, IDENTITY), int(sys.argv[2])
    while True:
        files.put(preimage_of(number), 16, block(number))
        number += 1
        if number % 8 == 0:
            files.flush()
            print(number, flush=True)
