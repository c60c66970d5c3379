"""How fast NIXL moves a prompt's KV cache between two processes on this machine: lend, read, release."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

import torch

from benchmarks.measure import write
from trtkit.deployment.dynamo.disaggregation import Borrower, Lender
from trtkit.jobs.json_form import to_json
from trtkit.llm.execution import CacheForm, SavedSequence
from trtkit.llm.execution.saved import CacheArray

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MIB, REPEATS = 2**20, 5
# SmolLM2-135M in fp16: 30 layers of 3 heads of 64.
ARRAYS = tuple(CacheArray(f"past_{kind}_{layer}", "float16", 3, 64) for layer in range(30) for kind in ("key", "value"))
TOKENS = (64, 512, 4096)


def lend(pipe: Connection) -> None:
    """Lend a sequence for each number of tokens received; send back the seconds that took, and the loan."""
    lender = Lender(512 * MIB, keep_s=60)
    while tokens := pipe.recv():
        form = CacheForm("", tokens, ARRAYS)
        saved = SavedSequence(form, torch.ones(form.size_bytes, dtype=torch.uint8))
        started = time.perf_counter()
        loan = lender.lend(range(tokens), saved)
        pipe.send((time.perf_counter() - started, to_json(loan)))


def measure() -> dict[str, dict[str, float]]:
    """Return the median seconds of lending and of reading, and MiB/s of both together, by number of tokens."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=lend, args=(there,), daemon=True)
    process.start()
    borrower, results = Borrower(limit_s=60), {}
    for tokens in TOKENS:
        lent, read, size = [], [], CacheForm("", tokens, ARRAYS).size_bytes
        for _ in range(1 + REPEATS):  # the first one connects and is not counted
            here.send(tokens)
            seconds, loan = here.recv()
            started = time.perf_counter()
            borrower.read(loan, range(tokens), lambda count: CacheForm("", count, ARRAYS))
            read.append(time.perf_counter() - started)
            lent.append(seconds)
        lend_s, read_s = (sorted(values[1:])[REPEATS // 2] for values in (lent, read))
        rate = size / MIB / (lend_s + read_s)
        results[f"{tokens} tokens"] = {"mib": size / MIB, "lend_s": lend_s, "read_s": read_s, "mib_per_s": rate}
    here.send(0)
    process.join()
    return results


if __name__ == "__main__":
    print(write("cache_transfer", {"transfers": measure()}))
