"""How far apart the two best logits must be for `trtkit verify` to compare which is larger, from correct networks.

Runs the tests' tiny model of every third decoder family in 16 bits against transformers in fp32. Networks out of
tolerance (mixtures in which rounding changed the selected experts) fail for their logits and are left out.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.measure import write
from tests.support.decoder_cases import CASES
from tests.support.decoders import executor_of, model_of
from trtkit.dtypes import dtype_of
from trtkit.verification.logits import CLEAR_SHARE

SHARES = (CLEAR_SHARE, 1.0)
PROMPTS, LENGTH, EVERY = 6, 24, 3
TIMES = 10
"""A network's tolerance as a multiple of an op's."""


def measured(model_type: str, dtype: str) -> tuple[float, list[tuple[float, bool]]]:
    """Return a network's error and each position's gap between the best two logits, both in tolerances.

    With each gap comes whether the network's choice differs from the reference's.
    """
    case = next(case for case in CASES if case.model_type == model_type)
    network, model, positions, errors = executor_of(case, dtype_of(dtype)), model_of(case), [], []
    tolerance, generator = TIMES * dtype_of(dtype).tolerance, torch.Generator().manual_seed(1)
    for _ in range(PROMPTS):
        ids = torch.randint(3, model.spec.vocab_size, (1, LENGTH), generator=generator)
        network.reset(1)
        ours, theirs = network.step(ids)["logits"][0].float(), model.logits(ids)[0]
        rms = theirs.square().mean().sqrt()
        errors.append(float((ours - theirs).square().mean().sqrt() / rms) / tolerance)
        best = theirs.topk(2).values
        gaps = (best[:, 0] - best[:, 1]) / (tolerance * rms)
        positions += list(zip(gaps.tolist(), (ours.argmax(-1) != theirs.argmax(-1)).tolist(), strict=True))
    executor_of.cache_clear()
    return max(errors), positions


def main() -> None:
    """Measure and write the result."""
    names = sorted({case.model_type for case in CASES})[::EVERY]
    results: dict[str, Any] = {}
    for dtype in ("fp16", "bf16"):
        networks = [positions for error, positions in (measured(name, dtype) for name in names) if error <= 1]
        count = sum(map(len, networks))
        results[dtype] = {"networks": len(networks), "out_of_tolerance": len(names) - len(networks)}
        for share in SHARES:
            clear = [[is_other for gap, is_other in positions if gap > share] for positions in networks]
            results[dtype][str(share)] = {
                "clear_positions": round(sum(map(len, clear)) / count, 4),
                "most_other_choices": round(max(sum(others) / len(others) for others in clear), 4),
            }
    write("clear_choices", results)


if __name__ == "__main__":
    main()
