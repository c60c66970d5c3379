"""HTML pages that commands write: checked before the work, with where their figures come from."""

from __future__ import annotations

import importlib
import shlex
from typing import TYPE_CHECKING

import click

from trtkit.cli.options import check_outputs

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.report.page import PageOrigin


def check_page(path: Path | None) -> None:
    """Refuse a page that could not be written, or drawn, after the work is done. Raises UsageError, ImportError."""
    if path is not None:
        check_outputs(path)
        importlib.import_module("trtkit.report.page")


def page_origin(bundle: Bundle | None = None) -> PageOrigin:
    """Return where the figures of a page come from: this command, and a bundle."""
    from trtkit.report.page import PageOrigin

    command = shlex.join(["trtkit", *(click.get_current_context().find_root().obj or ())])
    return PageOrigin(command, "" if bundle is None else f"{bundle.path}, build key {bundle.manifest.build_key}")
