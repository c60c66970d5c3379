"""What GitHub reads: how to cite trtkit, and the forms of issues."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from trtkit.cli.main import COMMANDS
from trtkit.version import __version__

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*_*.yml"))


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_has_unique_fields_and_names_commands_that_exist(form: Path) -> None:
    text = form.read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    names = [field["id"] for field in data["body"]]
    assert len(names) == len(set(names)) > 0
    assert all(field["attributes"]["label"] for field in data["body"])
    assert set(re.findall(r"`trtkit ([a-z]+)", text)) <= set(COMMANDS)


def test_there_are_forms() -> None:
    assert [form.stem for form in FORMS] == ["bug_report", "feature_request"]
