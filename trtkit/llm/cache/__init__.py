"""Which pages of a pool hold which tokens: numbers only, on the host; the memory is the KV cache's.

Source: PagedAttention, https://arxiv.org/abs/2309.06180.
"""

from trtkit.llm.cache.page_tables import PageCopies, PageTables, contents
from trtkit.llm.cache.prefix_tree import ROOT, START, PageChange, PrefixTree, block_keys, next_key

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
