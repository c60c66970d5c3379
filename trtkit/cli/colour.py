"""Whether to colour what is printed."""

from __future__ import annotations

import os


def colour() -> bool | None:
    """Return whether escape codes are wanted whatever the output is; None where a terminal gets them.

    NO_COLOR and TERM=dumb, which win, and FORCE_COLOR as rich reads them.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in {"dumb", "unknown"}:
        return False
    return True if os.environ.get("FORCE_COLOR") else None
