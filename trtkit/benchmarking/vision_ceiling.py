"""The ceilings of a network's figures at each shape, and the layers that are furthest from theirs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trtkit.benchmarking.ceiling import Ceiling, ceiling_of, largest_gaps, layer_rows, median_seconds, of_rate, of_time
from trtkit.jobs.events import Phase
from trtkit.planning.count_network import count_layers
from trtkit.planning.roofline import floor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.benchmarking.contenders import Contender
    from trtkit.benchmarking.shapes import ShapeCase
    from trtkit.bundle.bundle import Bundle
    from trtkit.inputs.samples import Sample
    from trtkit.jobs.runner import Runner
    from trtkit.planning.counts import Counts
    from trtkit.planning.roofline import Roof

Json = dict[str, Any]
_POINT = (1, 0, 0)  # counts are taken at the case's own shapes


def add_ceilings(
    bundle: Bundle,
    contenders: Sequence[Contender],
    cases: Sequence[tuple[ShapeCase, Sample, Json]],
    runner: Runner,
) -> Ceiling:
    """Add to each case's JSON its figures' ceilings, and its layers beside theirs; return what they are held against.

    Only contenders that compute the counted network in its precision at the same place have a ceiling.
    """
    own = contenders[0]
    if own.place is None:
        return ceiling_of(None, ())
    runner.report(Phase("count operations and bytes"))
    counted = [(case, count_layers(bundle, case.shapes, runner)) for case, _, _ in cases]
    ceiling = ceiling_of(own.place, {dtype for _, counts in counted if counts for dtype in counts.products})
    for (case, counts), (_, sample, found) in zip(counted, cases, strict=True):
        if counts is None or ceiling.roof is None:
            continue
        for contender, result in zip(contenders, found["results"], strict=True):
            if (contender.place, contender.precision) == (own.place, own.precision):
                result["ceilings"] = _figures(counts, ceiling.roof, case.batch, result)
        if own.layer_seconds is not None:
            runner.report(Phase(f"layers of {case.name}"))
            found.update(_layers(own, counts, ceiling.roof, sample))
    return ceiling


def _figures(counts: Counts, roof: Roof, batch: int, result: Json) -> Json:
    """Return the ceilings of one contender's figures, latency's beside the median."""
    least, metrics = floor(counts, _POINT, roof), result["metrics"]
    most = batch / least.seconds
    return {
        "latency": of_time(least.seconds, metrics["latency"]["p50"], least.bound),
        "throughput": of_rate(most, metrics["throughput"]["avg"], least.bound),
    }


def _layers(own: Contender, counts: Counts, roof: Roof, sample: Sample) -> Json:
    """Return every layer of one call in its order, those that lose the most, and the call as a whole."""
    assert own.layer_seconds is not None
    rows = layer_rows(counts, _POINT, roof, median_seconds(partial(own.layer_seconds, sample.inputs)))
    whole = {"flops": counts.flops.at(_POINT), "bytes": counts.fused_bytes.at(_POINT)}
    return {"phases": [{"name": "run", **whole, "layers": rows, "gaps": largest_gaps(rows)}]}
