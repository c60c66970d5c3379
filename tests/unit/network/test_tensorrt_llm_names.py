"""Every name that docs/tensorrt-llm-names.md points to exists."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "tensorrt-llm-names.md"


def test_the_page_names_what_exists() -> None:
    names = set(re.findall(r"`(trtkit\.[\w.]+)`", PAGE.read_text(encoding="utf-8")))
    assert len(names) > 40
    for name in names:
        pkgutil.resolve_name(name)
