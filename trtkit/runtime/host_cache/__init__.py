"""What host memory keeps of sequences that no cache has room for: by content, the least recently used out first."""

from trtkit.runtime.host_cache.blocks import BlockTier
from trtkit.runtime.host_cache.files import FileTier
from trtkit.runtime.host_cache.sequences import SequenceTier
from trtkit.runtime.host_cache.store import HostStore

__all__ = ["BlockTier", "FileTier", "HostStore", "SequenceTier"]
