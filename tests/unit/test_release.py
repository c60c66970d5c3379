"""The release workflow: its script names the version and quotes the changelog, and its commands exist."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys

import pytest
import yaml

from tests.support.docs import ROOT
from trtkit.version import __version__

WORKFLOW = ROOT / ".github/workflows/release.yml"
SCRIPT = ROOT / ".ci/release.py"


def steps() -> list[dict[str, str]]:
    job = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["release"]
    listed: list[dict[str, str]] = job["steps"]
    return listed


def test_the_tag_is_compared_with_the_version() -> None:
    ran = subprocess.run([sys.executable, SCRIPT, "version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{__version__}\n"


def test_notes_are_the_changelogs_section_with_links_to_the_tag() -> None:
    notes = subprocess.run([sys.executable, SCRIPT, "notes"], capture_output=True, text=True, check=True).stdout
    assert notes.startswith("### Added\n")
    assert "\n## " not in notes
    links = re.findall(r"\]\(([^)#]+)", notes)
    assert len(links) > 10
    local = [link for link in links if not link.startswith("https://")]
    prefix = f"../blob/v{__version__}/"
    assert [link for link in local if not (ROOT / link.removeprefix(prefix)).exists() or prefix not in link] == []


def test_a_version_without_a_section_has_no_notes() -> None:
    module = runpy.run_path(str(SCRIPT))
    module["notes"].__globals__["version"] = lambda: "9.9.9"
    with pytest.raises(SystemExit, match=r"CHANGELOG.md has no section of 9.9.9"):
        module["notes"]()


def test_actions_and_targets_of_the_workflow_exist() -> None:
    """Actions have a version, and `make` the targets; what else is run is the script."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in steps() if "uses" in step)
    commands = [step["run"] for step in steps() if "run" in step]
    (made,) = [command.split()[1:] for command in commands if command.startswith("make ")]
    assert set(made) <= targets
    assert {"lint", "types", "test-ci"} <= set(made)
    assert commands[-1].startswith('gh release create "$GITHUB_REF_NAME" dist/*.whl dist/*.tar.gz')
