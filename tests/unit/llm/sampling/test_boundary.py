from __future__ import annotations

import numpy as np
import pytest

from trtkit.llm.sampling.wide_rows import boundary

RNG = np.random.default_rng(0)
WIDE = 9001
KEYS = {
    "random": RNG.standard_normal(WIDE),
    "equal": np.zeros(WIDE),
    "two values": RNG.integers(0, 2, WIDE),
    "few values": RNG.integers(0, 7, WIDE),
    "in order": np.arange(WIDE),
    "falling": -np.arange(WIDE),
    "one apart": np.r_[np.full(WIDE - 1, 1e-3), 50.0],
    "heavy-tailed": 1 / RNG.permutation(np.arange(1, WIDE + 1)),
    "few": RNG.standard_normal(5),
}
WEIGHTS = {"as many": lambda keys: np.ones(len(keys)), "any": lambda keys: RNG.random(len(keys)),
           "few heavy": lambda keys: np.where(np.arange(len(keys)) % 1000 == 3, 1e3, 1e-3)}  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.1, 0.5, 0.95, 0.9999])
@pytest.mark.parametrize("weighing", WEIGHTS)
@pytest.mark.parametrize("name", KEYS)
def test_the_sum_in_sorted_order_passes_the_target_at_the_boundary(name: str, weighing: str, share: float) -> None:
    keys = KEYS[name].astype(np.float32)
    weights = WEIGHTS[weighing](keys).astype(np.float32)
    order = keys.argsort(kind="stable")
    sums = weights[order].astype(np.float64).cumsum()
    place = int(np.searchsorted(sums, share * sums[-1], "right"))
    target = ((sums[place - 1] if place else 0.0) + sums[place]) / 2
    spare = np.empty(len(keys), np.float32)
    at, before = boundary(keys, weights, target, spare)
    # Groups of 64 are summed in fp32.
    assert weights[keys < at].sum(dtype=np.float64) <= target * (1 + 1e-6)
    assert weights[keys <= at].sum(dtype=np.float64) >= target * (1 - 1e-6)
    np.testing.assert_allclose(before, weights[keys < at].sum(dtype=np.float64), rtol=1e-6, atol=1e-9)
    if weighing == "as many":
        assert at == keys[order[place]]
