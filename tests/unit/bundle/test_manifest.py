from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from trtkit.bundle.manifest import json_schema

PUBLISHED = Path(__file__).parents[3] / "docs/manifest.schema.json"


def test_published_schema_is_the_one_in_force() -> None:
    text = json.dumps(json_schema(), indent=2) + "\n"
    assert PUBLISHED.read_text() == text, f"write `json.dumps(json_schema(), indent=2)` and a newline to {PUBLISHED}"


def test_schema_is_one_that_validators_take() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("change", [{"schema_version": 1}, {"build_key": "abc"}, {"extra": 1}, {"engines": []}])
def test_schema_refuses_what_is_no_manifest(change: dict[str, object]) -> None:
    faults = jsonschema.Draft202012Validator(json_schema()).iter_errors(change)
    assert next(iter(change)) in str([fault.message + str(list(fault.path)) for fault in faults])
