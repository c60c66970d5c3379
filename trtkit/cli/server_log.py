"""The log of the server that a command runs, on stderr."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trtkit.cli.options import is_verbose
from trtkit.cli.visible import echo

if TYPE_CHECKING:
    from collections.abc import Callable


def server_log(is_information: Callable[[str], bool], *, quiet: bool) -> Callable[[str], None]:
    """Return what shows a line; only one that warns with --quiet, and none with --verbose, whose log has them all.."""
    log, is_shown = logging.getLogger("trtkit.server"), not is_verbose()

    def show(line: str) -> None:
        log.info("%s", line)
        if is_shown and not (quiet and is_information(line)):
            echo(line, err=True)

    return show
