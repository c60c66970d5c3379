"""What the host keeps, against a model: the limit is never exceeded, retained values stay, the oldest is evicted."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trtkit.llm.cache.host import HostStore

LIMIT = 20
KEYS = st.integers(0, 11).map(lambda number: bytes([number]))


class Machine(RuleBasedStateMachine):
    """The model is a list of (key, size), the next to give way first, and how often each key is retained."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[bytes] = []
        self.store = HostStore[int](LIMIT, lambda key, value: self.dropped.append(key * (value == key[0])))
        self.order: list[tuple[bytes, int]] = []
        self.retained: dict[bytes, int] = {}

    @rule(key=KEYS, size=st.integers(1, 9))
    def put(self, key: bytes, size: int) -> None:
        if key in self.store:
            return
        self.dropped.clear()
        retained = sum(each for name, each in self.order if self.retained.get(name))
        expected, left = [], list(self.order)
        while retained + size <= LIMIT and sum(each for _, each in left) + size > LIMIT:
            oldest = next(entry for entry in left if not self.retained.get(entry[0]))
            left.remove(oldest)
            expected.append(oldest[0])
        assert self.store.make_room(size) == (retained + size <= LIMIT)
        assert self.dropped == expected
        self.order = left
        if retained + size <= LIMIT:
            self.store.put(key, size, key[0])
            self.order.append((key, size))

    @rule(keys=st.lists(KEYS, unique=True, max_size=4))
    def touch(self, keys: list[bytes]) -> None:
        self.store.touch(keys)
        for key in reversed(keys):
            self.order.sort(key=lambda entry, key=key: entry[0] == key)  # type: ignore[misc]

    @rule(keys=st.lists(KEYS, unique=True, max_size=4))
    def retain(self, keys: list[bytes]) -> None:
        kept = self.store.retain(keys)
        assert kept == [key for key in keys if key in dict(self.order)]
        for key in kept:
            self.retained[key] = self.retained.get(key, 0) + 1

    @precondition(lambda self: any(self.retained.values()))
    @rule(choice=st.integers(0, 11))
    def release(self, choice: int) -> None:
        retained = sorted(key for key, count in self.retained.items() if count)
        key = retained[choice % len(retained)]
        self.store.release([key])
        self.retained[key] -= 1

    @invariant()
    def the_store_is_the_model(self) -> None:
        sizes = dict(self.order)
        assert self.store.size_bytes == sum(sizes.values()) <= LIMIT
        assert self.store.retained_bytes == sum(size for key, size in self.order if self.retained.get(key))
        assert len(self.store) == len(sizes)
        assert all(self.store.get(key) == key[0] for key in sizes)


TestStore = Machine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
