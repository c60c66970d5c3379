"""The command line: `trtkit`."""

from trtkit.cli.main import main

__all__ = ["main"]
