"""A deployment that kills itself midway. Runs in a child process, so it imports little."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from trtkit.deployment.triton.repository import place_models, write, writing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.deployment.triton.served import DeployedModel

CHANGES = {"os.rename", "os.mkdir", "os.link", "os.remove", "os.rmdir", "open"}


def deploy_up_to(models: Sequence[DeployedModel], repository: Path, step: int) -> None:
    """Deploy, and kill this process before its `step`-th change of a file."""
    done = 0

    def kill(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        is_read = event == "open" and not (isinstance(arguments[1], str) and set(arguments[1]) & set("wax"))
        if event in CHANGES and not is_read:
            done += 1
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    with writing(repository):
        write(place_models(models, repository, 1), repository, lambda _: None)
    os._exit(0)
