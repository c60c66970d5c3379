"""docs/parallel.md: its figures of sequence and context parallelism are those that plans count, or were measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tests.support.docs import DOCS
from tests.unit.planning.planned import question
from trtkit.models.parallel import Grid
from trtkit.planning.gpus import find_gpus
from trtkit.planning.llm import plan_llm
from trtkit.report.tables import size_text


def test_figures_are_those_that_plans_count() -> None:
    section = (DOCS / "parallel.md").read_text(encoding="utf-8").partition("## Sequence parallelism")[2]
    rows = re.findall(r"^\| [a-z][^|]+ \| ([^|]+) \| ([^|]+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    asked = replace(question("llama-3.1-70b", input_len=8192), grid=Grid(8, sequence=True))
    asked = replace(asked, work=replace(asked.work, chunk=8192))
    (h100,) = find_gpus(["h100"])
    grids = [each for each in plan_llm(asked, h100).grids if (each.tensor, each.pipeline) == (8, 1)]
    without, shared = sorted(grids, key=lambda each: each.sequence is not None)
    plan = shared.sequence
    assert plan is not None
    assert plan.tokens == 8192
    assert rows == [
        (size_text(plan.hidden_bytes_without), size_text(plan.hidden_bytes)),
        (size_text(plan.between_bytes_without), size_text(plan.between_bytes)),
        (size_text(plan.sent_bytes_without), size_text(plan.sent_bytes)),
        (f"{1e3 * plan.links_s_without:.1f} ms", f"{1e3 * plan.links_s:.1f} ms"),
        (f"{1e3 * without.links_s_per_step:.1f} ms", f"{1e3 * shared.links_s_per_step:.1f} ms"),
    ]


@pytest.mark.slow
def test_figures_of_context_parallelism_are_those_that_plans_count() -> None:
    section = (DOCS / "parallel.md").read_text(encoding="utf-8").partition("## Context parallelism")[2]
    table = section.partition("faster from |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    named = {"Llama 3.1 70B": "llama-3.1-70b", "DeepSeek-V3": "deepseek-v3"}
    (h100,) = find_gpus(["h100"])
    for title, batch, *figures in rows:
        name, gpus = title.split(", ")
        grid = Grid(ranks := int(gpus.split()[0]), context=ranks)
        asked = question(named[name], input_len=130944, output_len=128, concurrency=int(batch))
        plan = next(each.context for each in plan_llm(replace(asked, grid=grid), h100).grids if each.context)
        assert plan.length == 131072
        sizes = [size_text(plan.cache_bytes_without), size_text(plan.cache_bytes)]
        seconds = [plan.links_s_without, plan.links_s, plan.step_s_without, plan.step_s]
        pays = "never" if plan.pays_from is None else f"{plan.pays_from} tokens"
        assert figures == [*sizes, *(f"{1e3 * each:.1f} ms" for each in seconds), pays]


def test_measured_figures_of_context_parallelism_are_those_of_the_benchmark() -> None:
    results = json.loads((DOCS.parent / "benchmarks/results/context_parallel.json").read_text(encoding="utf-8"))
    runs = [results["executor"][kind][grid] for kind in ("linear", "paged") for grid in ("tensor", "context")]
    plans = [results["plan_bytes"][kind][grid] for kind in ("linear", "paged") for grid in ("tensor", "context")]
    page = (DOCS / "parallel.md").read_text(encoding="utf-8")
    for cells in (
        [f"{run['largest_error']:.1e}" for run in runs],
        [size_text(max(run["cache_bytes"])) for run in runs],
        [size_text(plan) for plan in plans],
    ):
        assert f"| {' | '.join(cells)} |" in page, cells
