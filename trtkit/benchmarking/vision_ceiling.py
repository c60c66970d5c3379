"""The ceilings of a network's figures at each shape, and the layers that are furthest from theirs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from trtkit.benchmarking.ceiling import ceiling_of, of_rate, of_time, phase_layers
from trtkit.benchmarking.report import TimedCase
from trtkit.jobs.events import Phase
from trtkit.planning.count_network import count_layers
from trtkit.planning.roofline import floor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.benchmarking.ceiling_report import Ceiling, Reached
    from trtkit.benchmarking.contenders import Contender
    from trtkit.benchmarking.report import ServedCase, TimedResult
    from trtkit.benchmarking.shapes import ShapeCase
    from trtkit.bundle.bundle import Bundle
    from trtkit.inputs.samples import Sample
    from trtkit.jobs.runner import Runner
    from trtkit.planning.counts import Counts
    from trtkit.planning.roofline import Roof

    ArraysCase = TimedCase | ServedCase
    Measured = tuple[ShapeCase, Sample, ArraysCase]

_POINT = (1, 0, 0)  # counts are taken at the case's own shapes


def with_ceilings(
    bundle: Bundle, contenders: Sequence[Contender], measured: Sequence[Measured], runner: Runner
) -> tuple[Ceiling, tuple[ArraysCase, ...]]:
    """Return what figures are held against, and the cases with their figures' ceilings and their layers' times.

    Only contenders that compute the counted network in its precision at the same place have a ceiling.
    """
    cases = tuple(case for _, _, case in measured)
    if contenders[0].place is None:
        return ceiling_of(None, ())[0], cases
    runner.report(Phase("count operations and bytes"))
    counts = [count_layers(bundle, shapes.shapes, runner) for shapes, _, _ in measured]
    ceiling, roof = ceiling_of(contenders[0].place, {dtype for each in counts if each for dtype in each.products})
    if roof is None:
        return ceiling, cases
    pairs = zip(measured, counts, strict=True)
    return ceiling, tuple(_with_ceilings(each, count, roof, contenders, runner) for each, count in pairs)


def _with_ceilings(
    measured: Measured, counts: Counts | None, roof: Roof, contenders: Sequence[Contender], runner: Runner
) -> ArraysCase:
    """Return one case with its ceilings and layers, as it was if its network cannot be counted."""
    own, (shapes, sample, case) = contenders[0], measured
    if counts is None or not isinstance(case, TimedCase):
        return case
    results = tuple(
        replace(result, ceilings=_figures(counts, roof, case.batch, result))
        if (contender.place, contender.precision) == (own.place, own.precision)
        else result
        for contender, result in zip(contenders, case.results, strict=True)
    )
    if own.layer_seconds is None:
        return replace(case, results=results)
    runner.report(Phase(f"layers of {shapes.name}"))
    phase = phase_layers("run", counts, _POINT, roof, partial(own.layer_seconds, sample.inputs))
    return replace(case, results=results, phases=(phase,))


def _figures(counts: Counts, roof: Roof, batch: int, result: TimedResult) -> dict[str, Reached]:
    """Return the ceilings of one contender's figures, latency's for the median."""
    least, latency = floor(counts, _POINT, roof), result.distribution("latency")
    assert latency is not None
    most = batch / least.seconds
    return {
        "latency": of_time(least.seconds, latency.p50, least.bound),
        "throughput": of_rate(most, result.metrics["throughput"].avg, least.bound),
    }
