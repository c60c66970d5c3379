"""docs/mistakes.md has trtkit's current errors, and each suggests a fix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.mistakes import MISTAKES, PAGE, page

if TYPE_CHECKING:
    from pathlib import Path


def test_the_page_has_what_trtkit_answers(tmp_path: Path) -> None:
    assert page(tmp_path) == PAGE.read_text(encoding="utf-8"), "run `python -m tests.mistakes`"


def test_errors_of_more_than_usage_say_how_to_fix_them() -> None:
    """What click says of a command line is fixed by `--help`; a message of a parser names the line that is wrong."""
    shown = PAGE.read_text(encoding="utf-8")
    answers = re.findall(r"^\$ ([^\n]*)\n(error: .*?)\n\(exit", shown, re.MULTILINE | re.DOTALL)
    assert len(answers) > 30
    unhelpful = [command for command, answer in answers if "fix: " not in answer]
    assert unhelpful == ["trtkit build classifier.onnx --set build.workspace_gib=much", "trtkit build broken.yaml"]


def test_there_are_as_many_as_five_visitors_made() -> None:
    assert sum(map(len, MISTAKES.values())) >= 36
