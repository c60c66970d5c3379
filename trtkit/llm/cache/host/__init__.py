"""What host memory keeps of sequences that no cache has room for: by content, the least recently used out first."""

from trtkit.llm.cache.host.blocks import BlockTier
from trtkit.llm.cache.host.files import FileTier
from trtkit.llm.cache.host.sequences import SavedSequences, SequenceTier
from trtkit.llm.cache.host.store import HostStore

__all__ = ["BlockTier", "FileTier", "HostStore", "SavedSequences", "SequenceTier"]
