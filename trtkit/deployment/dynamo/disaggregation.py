"""Prefill apart from decoding: one worker computes prompts and lends their caches, another borrows them and answers.

Dynamo's frontend sends a prompt to a prefill worker first, then to a decode worker with what the first one returned.
Nothing depends on a loan: a prompt whose cache does not arrive is computed by the decode worker.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trtkit.deployment.dynamo.transfer import Borrower, Lender
from trtkit.jobs.json_form import to_json

if TYPE_CHECKING:
    from dynamo.common.backend.engine import GenerateRequest

    from trtkit.deployment.dynamo.transfer import Loan
    from trtkit.runtime.generation import Engine
    from trtkit.runtime.llm import EngineThread

log = logging.getLogger("trtkit.dynamo")


def prompt_alone(request: GenerateRequest) -> GenerateRequest:
    """Return the request that a prefill worker runs: its prompt, for one token, which nobody reads."""
    return {
        "token_ids": request["token_ids"],
        "multi_modal_data": request.get("multi_modal_data") or {},
        "stop_conditions": {"max_tokens": 1},
        "sampling_options": {"temperature": 0.0},
    }


class Prefill:
    """A prefill worker's loans: most_bytes of them, each kept for keep_s seconds at most."""

    def __init__(self, most_bytes: int, keep_s: float) -> None:
        self._lender = Lender(most_bytes, keep_s)
        self._awaited: dict[str, list[int]] = {}
        self._loans: dict[str, Loan | None] = {}

    def expect(self, name: str, request: GenerateRequest) -> None:
        """Lend a request's cache once its prompt is computed; prompts with images are not lent."""
        if not request.get("multi_modal_data"):
            self._awaited[name] = list(request["token_ids"])

    def update(self, engine: Engine) -> None:
        """Lend what the last step has computed, before another request takes its slot; in the engine's thread."""
        for name, ids in list(self._awaited.items()):
            if engine.prefixes.has_whole(ids):
                saved = engine.prefixes.export(ids)
                self._awaited.pop(name, None)
                self._loans[name] = None if saved is None else self._lender.lend(ids, saved)

    def result(self, name: str) -> dict[str, object]:
        """Return what a request's last chunk tells the decode worker."""
        self._awaited.pop(name, None)
        loan = self._loans.pop(name, None)
        return {"disaggregated_params": {"loan": None if loan is None else to_json(loan)}}

    def is_quiescent(self) -> bool:
        """Whether nobody may still read a loan."""
        return not self._lender.count()


class Decode:
    """A decode worker's side: each transfer may take limit_s seconds."""

    def __init__(self, limit_s: float) -> None:
        self._borrower = Borrower(limit_s)

    async def fetch(self, request: GenerateRequest, thread: EngineThread) -> None:
        """Bring a prompt's cache here, if a prefill worker has lent it; what fails is logged, and computed here."""
        loan = ((request.get("prefill_result") or {}).get("disaggregated_params") or {}).get("loan")
        if loan is None:
            return
        ids, form = list(request["token_ids"]), thread.frontend.execution.cache.form
        try:
            saved = await asyncio.to_thread(self._borrower.read, loan, ids, form)
            await asyncio.wrap_future(thread.run(lambda engine: engine.prefixes.add(ids, saved)))
        except Exception as error:
            what = "; ".join(str(error).splitlines())
            log.warning("a prompt of %d tokens is computed here, its cache did not arrive: %s", len(ids), what)
