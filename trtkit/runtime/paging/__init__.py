"""Which pages of a pool hold which tokens: numbers only, on the host; the memory is the KV cache's.

Source: PagedAttention, https://arxiv.org/abs/2309.06180.
"""

from trtkit.runtime.paging.keys import START, block_keys, next_key
from trtkit.runtime.paging.prefix_tree import ROOT, PageChange, PrefixTree
from trtkit.runtime.paging.tables import PageCopies, PageTables, contents

__all__ = [
    "ROOT",
    "START",
    "PageChange",
    "PageCopies",
    "PageTables",
    "PrefixTree",
    "block_keys",
    "contents",
    "next_key",
]
