"""Results with an HTML page: the one that commands write with `--html`, in notebooks and as a file."""

from __future__ import annotations

import html
import importlib
from pathlib import Path
from typing import cast

from trtkit.extras import missing_package
from trtkit.files import write_output

# Drawn in a frame of its own, so that neither the page's style nor its scripts meet the notebook's. Browsers ignore the
# text inside; viewers that remove frames, because they do not trust a saved notebook, show it.
_FRAME = (
    '<iframe srcdoc="{page}" style=\'width:100%;height:480px;border:0\' onload="this.style.height='
    "Math.min(this.contentDocument.documentElement.scrollHeight+8,760)+'px'\"><pre>{text}</pre></iframe>"
)


class HasPage:
    """A result with an HTML page."""

    def save_html(self, path: str | Path) -> Path:
        """Write the page, one file that needs no other, and return its path.

        Raises MissingPackageError without the packages of `trtkit[report]`, TrtkitError for a path that cannot be
        written.
        """
        try:
            page = self._page()
        except ImportError as error:
            raise missing_package(error) or error from None
        write_output(Path(path), page)
        return Path(path)

    def _page(self) -> str:
        """Return the page. What draws it lies above the packages of results, so it is imported by its name."""
        return cast("str", importlib.import_module("trtkit.report.pages").page_of(self))

    def _repr_html_(self) -> str | None:
        """Return the page in a frame; None, for text, without the packages that draw it."""
        try:
            return _FRAME.format(page=html.escape(self._page()), text=html.escape(str(self)))
        except ImportError:
            return None
