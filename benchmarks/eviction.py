"""Which sequences of a recurrent model host memory should keep: by the tokens they cost, or the most recent ones.

A recurrent state has the same bytes whatever its sequence's length. 40 conversations are open at a time; a turn adds 40
tokens, and one turn in four opens a conversation, of 30 to 8,000 tokens. Only the host's tier runs, no model.
`python -m benchmarks.eviction`
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.measure import write
from trtkit.llm.cache.host import SavedSequences, SequenceTier

if TYPE_CHECKING:
    from trtkit.llm.cache.host.sequences import KeptSequence
    from trtkit.llm.cache.transfers import Transfer
    from trtkit.llm.sequences import Ints

TURNS, OPEN, TURN = 6000, 40, 40
STARTS, SHARES = (30, 200, 1500, 8000), (0.4, 0.3, 0.2, 0.1)
ROOMS = (10, 20, 40)
STATE_BYTES = 1000


def main() -> None:
    """Measure and write the results."""
    runs = []
    for room in ROOMS:
        recent, by_cost = (round(computed_share(room, equal_worth=equal), 3) for equal in (True, False))
        runs.append({"room_sequences": room, "computed_least_recently_used": recent, "computed_by_cost": by_cost})
    sizes = {"turns": TURNS, "open_conversations": OPEN, "turn_tokens": TURN, "first_tokens": STARTS, "shares": SHARES}
    print(write("eviction", {**sizes, "runs": runs}))
    print(json.dumps(runs, indent=1))


def computed_share(room: int, *, equal_worth: bool) -> float:
    """Return the share of prompt tokens that are computed when the host has room for `room` sequences.

    equal_worth: count every sequence as one token, which evicts the least recently used.
    """
    generator = np.random.default_rng(0)
    transfers: list[Transfer] = []
    tier = SequenceTier(room * STATE_BYTES, SavedSequences(), transfers, 16)
    put = tier.store.put

    def put_as_one_token(key: bytes, size_bytes: int, tokens: int, value: KeptSequence) -> None:
        put(key, size_bytes, min(tokens, 1), value)

    if equal_worth:
        tier.store.put = put_as_one_token  # type: ignore[method-assign]
    chats: list[Ints] = []
    computed = total = 0
    for _ in range(TURNS):
        index = int(generator.integers(len(chats))) if chats and generator.random() < 0.75 else len(chats)
        if index == len(chats):
            chats.append(generator.integers(0, 50_000, int(generator.choice(STARTS, p=SHARES))))
        prompt = chats[index] = np.concatenate([chats[index], generator.integers(0, 50_000, TURN)])
        kept = tier.find(prompt, 1)
        computed, total = computed + len(prompt) - (0 if kept is None else kept.tokens), total + len(prompt)
        tier.add(tier.key(prompt), prompt, STATE_BYTES)
        transfers.clear()
        del chats[: len(chats) - OPEN]
    return computed / total


if __name__ == "__main__":
    main()
