"""A report's JSON form: read back as it was written, and without infinities where users get it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from tests.support.reports import layer, output, report
from trtkit.jobs.json_form import from_json, to_json
from trtkit.verification.report import (
    Comparison,
    Corner,
    EngineOutputs,
    PartOutput,
    PerplexityCheck,
    Report,
    Rows,
    WorstSlice,
)

FULL = replace(
    report(outputs={"y": output(math.inf, passed=False, worst_slice=WorstSlice(1, 2, 0.5))}, passed=False),
    corners=(Corner("chunks of 5", {"input_ids": (1, 5)}, False, math.inf, problem="no shape"),),
    parts=(PartOutput(0.1, 0.2, 0.3, 1.0, name="neck", module="model.neck", passed=True),),
    rows=Rows(0.1, 0.2, passed=True),
    engine=EngineOutputs(passed=True, outputs={"y": Comparison(0.0, 0.0, 0.0, 1.0)}),
    perplexity=PerplexityCheck("t.txt", 1, 2, 2.0, 2.0, 0.0, 0.1, passed=True),
    layers=(layer("stem", math.inf, reads=("x",)),),
)


def test_a_report_of_everything_goes_through_the_json_of_jobs() -> None:
    assert from_json(Report, json.loads(json.dumps(to_json(FULL)))) == FULL


def test_print_shows_the_tables_of_the_command_and_notebooks_a_line() -> None:
    assert repr(FULL) == f"<report of {FULL.name}: failed>"
    first, *_, last = str(FULL).splitlines()
    assert (first, last.partition(":")[0]) == (f"verify {FULL.name}", "FAIL (out of tolerance)")


def test_users_get_a_version_and_null_where_a_number_is_infinite() -> None:
    data = FULL.to_json()
    assert json.dumps(data, allow_nan=False)
    assert data["version"] == 1
    assert data["outputs"]["y"]["relative_rms_error"] is None
    assert data["outputs"]["y"]["worst_slice"] == {"axis": 1, "index": 2, "relative_rms_error": 0.5}
    assert data["corners"][0]["relative_rms_error"] is data["layers"][0]["relative_rms_error"] is None
    assert data["parts"][0]["module"] == "model.neck"
    assert data["top_1_agreement"] is None
    assert "fixed" not in data
