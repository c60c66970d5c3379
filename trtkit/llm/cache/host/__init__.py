"""Host memory for sequences that caches have no room for: found by content, evicted by the cost to compute again."""

from trtkit.llm.cache.host.blocks import BlockTier
from trtkit.llm.cache.host.files import FileTier
from trtkit.llm.cache.host.sequences import SavedSequences, SequenceTier
from trtkit.llm.cache.host.store import HostStore

__all__ = ["BlockTier", "FileTier", "HostStore", "SavedSequences", "SequenceTier"]
