"""`Share`: which of several equal parts a rank holds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Part number `index` of something that is split among `count` ranks."""

    index: int = 0
    count: int = 1

    def of(self, size: int) -> range:
        """Return this share of `size` items, a contiguous range; the first shares are one longer if they differ."""
        least, longer = divmod(size, self.count)
        start = self.index * least + min(self.index, longer)
        return range(start, start + least + (self.index < longer))


WHOLE = Share()
