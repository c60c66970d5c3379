"""What a release is called and what it says: `python .ci/release.py version`, `python .ci/release.py notes`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def version() -> str:
    """Return trtkit's version, without importing it."""
    text = (ROOT / "trtkit/version.py").read_text(encoding="utf-8")
    (number,) = re.findall(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    return str(number)


def notes() -> str:
    """Return the changelog's section of this version, whose links lead to files of the tag. Raises SystemExit."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(version())}\b[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None or not section[1].strip():
        sys.exit(f"CHANGELOG.md has no section of {version()}")
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"](../blob/v{version()}/\1)", section[1].strip()) + "\n"


if __name__ == "__main__":
    print({"version": version, "notes": notes}[sys.argv[1]](), end="" if sys.argv[1] == "notes" else "\n")
