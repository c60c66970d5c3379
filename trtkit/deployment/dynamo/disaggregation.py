"""Disaggregated prefill: one worker computes prompts and lends their caches over NIXL, another borrows them.

Dynamo's frontend sends a prompt to a prefill worker first, then to a decode worker together with the prefill worker's
result. No request depends on a loan: if a prompt's cache does not arrive, the decode worker computes it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import queue
import secrets
import threading
import time
import weakref
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.errors import ExecutionError
from trtkit.jobs.json_form import from_json, to_json
from trtkit.llm.execution import CacheForm, SavedSequence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo.common.backend.engine import GenerateRequest

    from trtkit.llm import EngineThread
    from trtkit.llm.engine import LLMEngine


log = logging.getLogger("trtkit.dynamo")


def prompt_alone(request: GenerateRequest) -> GenerateRequest:
    """Return the request that a prefill worker runs: the prompt with one output token, which is discarded."""
    return {
        "token_ids": request["token_ids"],
        "multi_modal_data": request.get("multi_modal_data") or {},
        "stop_conditions": {"max_tokens": 1},
        "sampling_options": {"temperature": 0.0},
    }


class Prefill:
    """A prefill worker's loans: at most `most_bytes` of them, each kept for at most `keep_s` seconds."""

    def __init__(self, most_bytes: int, keep_s: float) -> None:
        self._lender = Lender(most_bytes, keep_s)
        self._awaited: dict[str, list[int]] = {}
        self._loans: dict[str, Loan | None] = {}

    def expect(self, name: str, request: GenerateRequest) -> None:
        """Lend a request's cache once its prompt is computed; prompts with images are not lent."""
        if not request.get("multi_modal_data"):
            self._awaited[name] = list(request["token_ids"])

    def update(self, engine: LLMEngine) -> None:
        """Lend the caches completed by the last step before other requests take their slots; in the engine's thread."""
        for name, ids in list(self._awaited.items()):
            if engine.prefixes.has_whole(ids):
                saved = engine.prefixes.export(ids)
                self._awaited.pop(name, None)
                self._loans[name] = None if saved is None else self._lender.lend(ids, saved)

    def result(self, name: str) -> dict[str, object]:
        """Return the loan data in a request's last chunk for the decode worker."""
        self._awaited.pop(name, None)
        loan = self._loans.pop(name, None)
        return {"disaggregated_params": {"loan": None if loan is None else to_json(loan)}}

    def is_quiescent(self) -> bool:
        """Whether no loan can still be read."""
        return not self._lender.count()


class Decode:
    """A decode worker's side: each transfer may take `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self._borrower = Borrower(limit_s)

    async def fetch(self, request: GenerateRequest, thread: EngineThread) -> None:
        """Fetch a prompt's cache if a prefill worker lent it; failures are logged, and the prompt is computed here."""
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


_SEAL_BYTES = 64
_POLL_S = 0.0003
_WHERE = "transfer of a prompt's cache"


@dataclass(frozen=True)
class Loan:
    """Where a borrower finds a cache, as JSON in a request's data.

    agent: the lender's NIXL metadata in base64. address: of the seal in the lender's memory; the bytes follow it.
    nonce: identifies the loan. form: layout of the bytes.
    """

    agent: str
    address: int
    nonce: str
    form: CacheForm


def _seal(loan_nonce: str, form: CacheForm, ids: Sequence[int]) -> bytes:
    """Return the seal that precedes a loan's bytes: it matches only this loan, this form and these token ids."""
    digest = blake2b(digest_size=_SEAL_BYTES)
    digest.update(f"{loan_nonce} {to_json(form)}".encode())
    digest.update(np.asarray(ids[: form.tokens], np.int64).tobytes())
    return digest.digest()


class Agent:
    """A NIXL agent of this process. Thread-safe.

    NIXL's own progress thread never sleeps: it would take a core from each worker's engine.
    """

    def __init__(self) -> None:
        from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

        strict = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        name = f"trtkit-{secrets.token_hex(8)}"
        config = nixl_agent_config(enable_prog_thread=False, backends=["UCX"], sync_mode=strict)
        self._agent = nixl_agent(name, config)
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_progress, args=(weakref.ref(self),), name="trtkit-nixl", daemon=True).start()

    def register(self, memory: torch.Tensor) -> Callable[[], None]:
        """Let peers read and write `memory` [bytes]; return a function that deregisters it."""
        region = [(memory.data_ptr(), memory.nbytes, 0, "")]
        registered = self._agent.register_memory(self._agent.get_reg_descs(region, "DRAM"))
        return lambda: self._agent.deregister_memory(registered)

    @property
    def metadata(self) -> str:
        """The base64 metadata with which peers reach the memory registered so far."""
        return base64.b64encode(self._agent.get_agent_metadata()).decode()

    def connect(self, metadata: str) -> str:
        name: str = self._agent.add_remote_agent(base64.b64decode(metadata, validate=True))
        return name

    def forget(self, peer: str) -> None:
        """Drop the connection to a peer, which may have exited."""
        self._agent.remove_remote_agent(peer)

    def tell(self, peer: str, note: str) -> None:
        self._agent.send_notif(peer, note.encode())

    def notes(self) -> list[str]:
        return [self._notes.get() for _ in range(self._notes.qsize())]

    def collect(self) -> None:
        """Collect notifications; asking for them is also what makes transfers to and from peers progress."""
        for notes in self._agent.get_new_notifs().values():
            for note in notes:
                self._notes.put(note.decode())

    def read(self, peer: str, address: int, target: torch.Tensor, end_s: float) -> None:
        """Fill `target`, registered memory, from a peer's address. Raises TimeoutError or NIXL's errors."""
        size = target.nbytes
        local = self._agent.get_xfer_descs([(target.data_ptr(), size, 0)], "DRAM")
        remote = self._agent.get_xfer_descs([(address, size, 0)], "DRAM")
        transfer = self._agent.initialize_xfer("READ", local, remote, peer)
        try:
            state = self._agent.transfer(transfer)
            while state == "PROC" and time.monotonic() < end_s:
                time.sleep(_POLL_S)
                state = self._agent.check_xfer_state(transfer)
        finally:
            transfer.release()
        if state != "DONE":
            raise TimeoutError("the transfer took too long" if state == "PROC" else "the transfer failed")


def _progress(agent: weakref.ref[Agent]) -> None:
    """Make transfers of an agent's peers progress for as long as the agent exists."""
    while (present := agent()) is not None:
        present.collect()
        del present
        time.sleep(_POLL_S)


class Lender:
    """Lends caches from memory that is registered once: at most `most_bytes`, each loan for at most `keep_s` seconds.

    A loan that ends frees its memory even while it is being read: a reader checks the seal after reading.
    """

    def __init__(self, most_bytes: int, keep_s: float) -> None:
        self._memory, self._keep_s = torch.zeros(most_bytes, dtype=torch.uint8), keep_s
        self._agent = Agent()
        self._agent.register(self._memory)
        self._metadata = self._agent.metadata
        self._loans: dict[str, tuple[int, int, float]] = {}  # start and stop in the memory, and when it ends
        self._lock = threading.Lock()

    def lend(self, ids: Sequence[int], saved: SavedSequence) -> Loan | None:
        """Lend a prompt's cache; None if there is no room now."""
        with self._lock:
            self._sweep()
            size, nonce = _SEAL_BYTES + saved.data.nbytes, secrets.token_hex(16)
            start = self._room(size)
            if start is None:
                return None
            self._loans[nonce] = start, start + size, time.monotonic() + self._keep_s
            self._memory[start + _SEAL_BYTES : start + size] = saved.data
            seal = _seal(nonce, saved.form, ids)
            self._memory[start : start + _SEAL_BYTES] = torch.frombuffer(bytearray(seal), dtype=torch.uint8)
        return Loan(self._metadata, self._memory.data_ptr() + start, nonce, saved.form)

    def count(self) -> int:
        """Return the number of open loans."""
        with self._lock:
            self._sweep()
            return len(self._loans)

    def _sweep(self) -> None:
        """End the loans that were read or have expired, after breaking their seals."""
        now, read = time.monotonic(), set(self._agent.notes())
        for nonce, (start, _, end_s) in list(self._loans.items()):
            if nonce in read or now > end_s:
                self._memory[start : start + _SEAL_BYTES] = 0
                del self._loans[nonce]

    def _room(self, size: int) -> int | None:
        """Return the first offset with room for `size` bytes."""
        start = 0
        for first, stop, _ in sorted(self._loans.values()):
            if first - start >= size:
                break
            start = -(-stop // 64) * 64
        return start if start + size <= self._memory.nbytes else None


class Borrower:
    """Reads lent caches. Each transfer may take `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self._agent, self._limit_s = Agent(), limit_s

    def read(self, data: object, ids: Sequence[int], form_of: Callable[[int], CacheForm]) -> SavedSequence:
        """Return the lent cache of a prompt, and notify the lender.

        data: a Loan in JSON form. form_of: the form of this worker's caches for a number of tokens. Raises
        ExecutionError for a loan that does not fit, and NIXL's errors for a lender that does not answer.
        """
        loan, end_s = from_json(Loan, data), time.monotonic() + self._limit_s
        form = form_of(loan.form.tokens)
        fault = loan.form.difference(form)
        if not fault and not 0 < form.tokens <= len(ids):
            fault = f"{form.tokens} cached tokens are lent for a prompt of {len(ids)}"
        if fault:
            raise ExecutionError(fault, _WHERE, "give prefill and decode workers bundles of one model")
        memory = torch.zeros(2 * _SEAL_BYTES + form.size_bytes, dtype=torch.uint8)
        take_back = self._agent.register(memory)
        try:
            self._fill(loan, memory, end_s)
        finally:
            take_back()
        want, seals = _seal(loan.nonce, form, ids), memory.numpy()
        if seals[:_SEAL_BYTES].tobytes() != want or seals[-_SEAL_BYTES:].tobytes() != want:
            raise ExecutionError("the bytes are not those that were lent", _WHERE, "raise the time that loans are kept")
        return SavedSequence(form, memory[_SEAL_BYTES:-_SEAL_BYTES])

    def _fill(self, loan: Loan, memory: torch.Tensor, end_s: float) -> None:
        """Read the seal and the bytes, then the seal again.

        If it is unchanged, the bytes were not overwritten meanwhile.
        """
        peer = self._agent.connect(loan.agent)
        try:
            self._agent.read(peer, loan.address, memory[:-_SEAL_BYTES], end_s)
            self._agent.read(peer, loan.address, memory[-_SEAL_BYTES:], end_s)
            self._agent.tell(peer, loan.nonce)
        except Exception:
            self._agent.forget(peer)
            raise
