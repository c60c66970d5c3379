"""A lender in a process of its own: lends what it is told to, says how many loans are open, and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trtkit.deployment.dynamo.disaggregation import Lender
from trtkit.jobs.json_form import to_json
from trtkit.llm.execution import CacheForm, SavedSequence

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def serve(pipe: Connection, most_bytes: int, keep_s: float) -> None:
    """Answer until the other end closes: (ids, form, fill) with a loan's JSON form, None with the number of loans."""
    lender = Lender(most_bytes, keep_s)
    pipe.send("ready")
    while True:
        try:
            order: tuple[list[int], CacheForm, int] | None = pipe.recv()
        except EOFError:
            return
        if order is None:
            pipe.send(lender.count())
            continue
        ids, form, fill = order
        loan = lender.lend(ids, SavedSequence(form, torch.full((form.size_bytes,), fill, dtype=torch.uint8)))
        pipe.send(None if loan is None else to_json(loan))
