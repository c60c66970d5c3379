"""What the host keeps, against a model: no more than the limit, retained values always, the lowest ranks not."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trtkit.llm.cache.host import HostStore

LIMIT = 20
KEYS = st.integers(0, 11).map(lambda number: bytes([number]))


class Machine(RuleBasedStateMachine):
    """The model is each key's size, worth and rank, in the order of use, and how often each key is retained."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[bytes] = []
        self.store = HostStore[int](LIMIT, lambda key, value: self.dropped.append(key * (value == key[0])))
        self.known: dict[bytes, tuple[int, float]] = {}
        self.rank: dict[bytes, float] = {}
        self.evicted_rank = 0.0
        self.retained: dict[bytes, int] = {}

    @rule(key=KEYS, size=st.integers(1, 9), worth=st.sampled_from([1, 2, 8]))
    def put(self, key: bytes, size: int, worth: int) -> None:
        if key in self.store:
            return
        self.dropped.clear()
        retained = sum(each for name, (each, _) in self.known.items() if self.retained.get(name))
        expected = []
        while retained + size <= LIMIT and sum(each for each, _ in self.known.values()) + size > LIMIT:
            # `min` returns the first of equal ranks, the least recently used.
            lowest = min((name for name in self.known if not self.retained.get(name)), key=self.rank.__getitem__)
            self.evicted_rank = max(self.evicted_rank, self.rank[lowest])
            del self.known[lowest]
            expected.append(lowest)
        assert self.store.make_room(size) == (retained + size <= LIMIT)
        assert self.dropped == expected
        if retained + size <= LIMIT:
            self.store.put(key, size, size * worth, key[0])
            self.known[key] = size, 2.0 * worth
            self.rank[key] = self.evicted_rank + 2.0 * worth

    @rule(keys=st.lists(KEYS, unique=True, max_size=4))
    def touch(self, keys: list[bytes]) -> None:
        self.store.touch(keys)
        for key in [key for key in reversed(keys) if key in self.known]:
            self.known[key] = self.known.pop(key)
            self.rank[key] = self.evicted_rank + self.known[key][1]

    @rule(keys=st.lists(KEYS, unique=True, max_size=4))
    def retain(self, keys: list[bytes]) -> None:
        kept = self.store.retain(keys)
        assert kept == [key for key in keys if key in self.known]
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
        sizes = {key: size for key, (size, _) in self.known.items()}
        assert self.store.size_bytes == sum(sizes.values()) <= LIMIT
        assert self.store.retained_bytes == sum(size for key, size in sizes.items() if self.retained.get(key))
        assert len(self.store) == len(sizes)
        assert all(self.store.get(key) == key[0] for key in sizes)


TestStore = Machine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_costs_most_to_compute_again_stays() -> None:
    """States of recurrent layers take the same bytes for a short sequence as for a long one."""
    store = HostStore[int](3)
    for name, tokens in ((b"long", 4096), (b"short", 16), (b"other", 32)):
        store.put(name, 1, tokens, 0)
    assert store.make_room(1)
    assert b"short" not in store
    for number in range(1000):  # yet what is never used again goes at last
        if b"long" not in store:
            break
        store.put(bytes([number % 256]) * 8, 1, 128, 0)
        assert store.make_room(1)
    assert b"long" not in store
    assert number > 10
