"""gloo groups whose members are threads of the test, without processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import HashStore

from trtkit.reference import GlooRank
from trtkit.reference.ranks import gloo_group

if TYPE_CHECKING:
    from trtkit.reference.ranks import GlooGroup


def gloo_groups(count: int) -> list[GlooGroup]:
    """Return each member's view of a group, for one thread each."""
    store = HashStore()
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda rank: gloo_group(store, rank, count), range(count)))


def gloo_ranks(count: int, timeout_s: float = 10.0) -> list[GlooRank]:
    """Return the members of a group as ranks of a network."""
    return [GlooRank(group, timeout_s) for group in gloo_groups(count)]
