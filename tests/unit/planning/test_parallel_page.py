"""docs/parallel.md: its figures of sequence parallelism are those that plans count."""

from __future__ import annotations

import re
from dataclasses import replace

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
