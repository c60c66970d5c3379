"""Every decoder family on an engine: greedy tokens equal the reference decoder's, in fp32, with mixed slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.support.covering import SEEN, STEPPED, in_covering_set_of
from tests.support.decoder_cases import CASES
from tests.support.engine_decoders import config_of, greedy
from trtkit.llm.execution import open_execution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer
    from tests.support.decoder_case import Case


def ask(place: Place) -> Iterator[Answer]:
    """Compare tokens and logits; after an engine that fails, the others are still tried.

    Families with unusual caches, states or positions come first. Simulated, only two run, since
    tests/integration/engines/test_decoders.py has the others.
    """
    is_first = in_covering_set_of(CASES, SEEN if place.is_simulated else STEPPED)
    cases = sorted(CASES, key=lambda case: not is_first(case))
    for case in cases[:2] if place.is_simulated else cases:
        try:
            yield _compare(place, case)
        except Exception as error:
            yield {"what": case.name, "holds": False, "error": f"{type(error).__name__}: {error}"}


def _compare(place: Place, case: Case) -> Answer:
    bundle = place.bundle(f"family-{case.name}", lambda: config_of(case, place.scratch / "families" / case.name))
    prompts = np.random.default_rng(0).integers(3, 60, (3, 7))
    runs = [greedy(open_execution(bundle, runtime), prompts, 6) for runtime in ("tensorrt", "reference")]
    (tokens, logits), (expected_tokens, expected) = runs
    error = float(np.abs(np.array(logits) - np.array(expected)).max())
    return {"what": case.name, "holds": bool(np.array_equal(tokens, expected_tokens)), "max_abs_error": error}
