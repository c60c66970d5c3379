"""Page tables, prefixes and host tiers of cached tokens: numbers only; the memory is the KV cache's.

Source: PagedAttention, https://arxiv.org/abs/2309.06180.
"""

from trtkit.llm.cache.held_blocks import Block, HeldBlocks, contents
from trtkit.llm.cache.page_tables import PageCopies, PageTables
from trtkit.llm.cache.prefix_tree import PrefixTree

__all__ = ["Block", "HeldBlocks", "PageCopies", "PageTables", "PrefixTree", "contents"]
