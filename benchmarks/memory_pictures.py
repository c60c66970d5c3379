"""Draws docs/images/memory.svg from results: `python -m benchmarks.memory_pictures`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.measure import RESULTS
from trtkit.report import charts

PICTURE = Path(__file__).parents[1] / "docs/images/memory.svg"
_WIDTH, _HEIGHT = 230, 130
RESERVED = {"tokens": charts.BLUE, "prompts not computed yet": charts.GREEN, "empty": charts.GREY}


def held(results: dict[str, Any]) -> list[charts.Row]:
    """Return how many sequences 2 GiB hold, and how many more would fit without unused memory."""
    rows: list[charts.Row] = []
    for name, form in results["capacity"].items():
        count, possible = form["sequences"], form["sequences"] / (1 - form["waste"])
        rows.append({"row": name, "start": 0.0, "end": count, "what": "at once"})
        rows.append({"row": name, "start": count, "end": round(possible, 1), "what": "lost to waste"})
    return rows


def waited(results: dict[str, Any]) -> list[charts.Row]:
    """Return the median TTFT of conversations that exceed the caches, without and with host memory."""
    return [
        {"row": f"{kind}, {which} host memory", "start": 0.0, "end": results[kind][which]["ttft_ms"], "what": which}
        for kind in ("slots", "pages")
        for which in ("without", "with")
    ]


def reserved(results: dict[str, Any]) -> list[charts.Row]:
    """Return how reserved memory is used on each trace, as shares: in slots and in pages of 16 tokens."""
    rows: list[charts.Row] = []
    for trace, found in results["traces"].items():
        for kind, form in (("slots", "linear"), ("pages", "paged, 16 tokens a page")):
            figures = found["caches"][form]
            waste = 100 * figures["share_of_reserved_memory_without_a_token"]
            unread = 100 * figures["of_it_for_prompts_not_computed_yet"]
            ends = (100 - waste, 100 - waste + unread, 100.0)
            for name, start, end in zip(RESERVED, (0.0, *ends), ends, strict=False):
                rows.append({"row": f"{trace}: {kind}", "start": round(start, 2), "end": round(end, 2), "what": name})
    return rows


def main() -> None:
    """Draw the picture."""
    names = ("paged_memory", "host_cache", "trace_memory")
    paged, host, traces = (json.loads((RESULTS / f"{name}.json").read_text()) for name in names)
    left = charts.bars(
        held(paged),
        "sequences in 2 GiB of caches",
        charts.colour("what", "", {"at once": charts.BLUE, "lost to waste": charts.GREY}),
    )
    by_memory = charts.colour("what", "", {"without": charts.GREY, "with": charts.BLUE}).legend(None)
    right = charts.bars(waited(host), "median time to first token of later turns, ms", by_memory)
    panels = [panel.properties(width=_WIDTH, height=_HEIGHT) for panel in (left, right)]
    by_content = charts.colour("what", "", RESERVED)
    below = charts.bars(reserved(traces), "reserved memory on published traces, %", by_content)
    above = alt.hconcat(*panels).resolve_scale(color="independent")
    below = below.properties(width=2 * _WIDTH, height=_HEIGHT)
    alt.vconcat(above, below).resolve_scale(color="independent").save(str(PICTURE))


if __name__ == "__main__":
    main()
