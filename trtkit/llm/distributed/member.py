"""A child process that is one rank. `members.py` starts it as `python -P -m trtkit.llm.distributed.member`."""

from __future__ import annotations

import json
import os
import sys
import threading

from trtkit.bundle.bundle import open_bundle
from trtkit.errors import TrtkitError
from trtkit.jobs.json_form import from_json
from trtkit.jobs.worker import exit_with_parent
from trtkit.llm.distributed.members import MemberRequest
from trtkit.llm.distributed.open import serve_rank
from trtkit.llm.distributed.world import member_world
from trtkit.threads import wait_briefly


def main() -> None:
    """Run as the rank that the first line of stdin describes."""
    request = from_json(MemberRequest, json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=exit_with_parent, daemon=True).start()
    wait_briefly()
    world = member_world(request.rank, request.count, request.port)
    try:
        serve_rank(open_bundle(request.bundle), request.options, world)
    except TrtkitError as error:
        print(f"error: {error.what}", file=sys.stderr, flush=True)
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # threads of gloo and TensorRT may still be waiting


if __name__ == "__main__":
    main()
