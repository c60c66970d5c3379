"""`python -m trtkit`, which is also how torchrun starts a rank."""

import atexit
import os
import sys

from trtkit.cli import main


def _end_ranks(code: object) -> None:
    """End a process that was one of several ranks: threads of gloo may abort it while Python takes itself apart."""
    if "trtkit.llm.distributed.world" in sys.modules:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    try:
        main()
    except SystemExit as stop:
        _end_ranks(stop.code)
        raise
    _end_ranks(0)
