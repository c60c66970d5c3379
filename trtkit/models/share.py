"""One rank's share of something that several ranks hold together."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """One of `count` shares of something that several ranks hold together, selected by `index`."""

    index: int = 0
    count: int = 1

    def of(self, size: int) -> range:
        """Return this share of `size` items: consecutive ones, with the first shares one longer if they are unequal."""
        least, longer = divmod(size, self.count)
        start = self.index * least + min(self.index, longer)
        return range(start, start + least + (self.index < longer))


WHOLE = Share()
