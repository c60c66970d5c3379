"""In-flight batching: requests join and leave at every step; prompt chunks are read while other slots decode."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.adapters import no_adapters
from trtkit.llm.cache.prefixes import Prefixes
from trtkit.llm.engine.decoding import (
    Guessed,
    chunks_call,
    decode,
    drafts_of,
    guessed_of,
    mark,
    mixed_call,
    observe,
    verify,
)
from trtkit.llm.engine.in_flight import InFlight, Launched, begin, can_launch, collect, draw, launch, launched_step
from trtkit.llm.engine.options import EngineOptions, check_options
from trtkit.llm.engine.request import check_request
from trtkit.llm.engine.state import State
from trtkit.llm.engine.tokens import take
from trtkit.llm.sampling.kernel import trial
from trtkit.llm.sampling.sampled import token_logprobs
from trtkit.llm.scheduler.costs import StepCosts
from trtkit.llm.scheduler.scheduler import Scheduler, TokensInFlight
from trtkit.llm.sequences import UNKNOWN
from trtkit.runtime.device import is_on_host, to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from trtkit.llm.adapters import Adapters, LoadedAdapter, PreparedAdapter
    from trtkit.llm.cache.host.tier import HostTier
    from trtkit.llm.engine.decoding import MixedCall
    from trtkit.llm.engine.drafts import Drafts
    from trtkit.llm.engine.request import Finished, Request
    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.execution.execution import PackedCalls
    from trtkit.llm.scheduler.batch import Batch, Chunk
    from trtkit.llm.scheduler.costs import Statistics
    from trtkit.llm.scheduler.slots import Slots
    from trtkit.llm.sequences import Ints


_LOG = logging.getLogger("trtkit.engine")


class LLMEngine:
    """Runs requests in one decoder's slots by carrying out its scheduler's batches. Not thread-safe.

    A request's tokens depend on the request alone: a draw follows from its seed and position, never from the other
    requests in the batch. prefixes: the cached prefixes, to look up, export and import.
    """

    def __init__(
        self, execution: DecoderExecution, options: EngineOptions | None = None, adapters: Adapters | None = None
    ) -> None:
        self.execution, self._options = execution, options or EngineOptions()
        check_options(self._options, execution)
        has_kernel = _has_kernel(execution) if self._options.kernel is None else self._options.kernel
        wants_overlap = execution.is_asynchronous if self._options.overlap is None else self._options.overlap
        self._overlaps = wants_overlap and execution.takes_ids and self._options.proposer is None
        costs, shared = StepCosts(is_late=self._overlaps and execution.is_asynchronous), self._options.of(execution)
        self._scheduler: Scheduler[Request] = Scheduler(execution.cache, shared, self._options.clock, adapters, costs)
        self._state = State(execution, self._scheduler, has_kernel=has_kernel)
        self._packed = self._options.packed_calls(execution)
        self._in_flight: list[InFlight] = []
        self._counted = replace(execution.calls)
        store, slots = self._scheduler.memory.prefixes, self._scheduler.slots
        self.prefixes = Prefixes(store, slots, execution.cache, self._options.min_shared_tokens)

    @property
    def statistics(self) -> Statistics:
        """Counts of the work done so far. Reading the neuron counts waits for the device."""
        statistics, neurons = self._scheduler.statistics, self.execution.calls.neurons
        if neurons is not None:
            statistics.active_blocks, statistics.read_blocks, statistics.missed_blocks = neurons.values()
            statistics.row_bytes = neurons.row_bytes
        return statistics

    @property
    def host(self) -> HostTier:
        """The cache tier in host memory; read only."""
        return self._scheduler.memory.host

    @property
    def slots(self) -> Slots:
        """What each slot holds; read only, and only between steps."""
        return self._scheduler.slots

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work or bool(self._in_flight)

    @property
    def free_slots(self) -> int:
        """Number of slots without a running request."""
        return self._scheduler.slots.free

    @property
    def waiting(self) -> int:
        """Number of requests waiting for a slot."""
        return len(self._scheduler.queue)

    @property
    def most_waiting(self) -> int | None:
        """Limit on waiting requests; None if unlimited."""
        return self._scheduler.queue.limit

    def load_adapter(self, name: str, adapter: PreparedAdapter) -> None:
        """Load a LoRA adapter. Raises RequestError if the name is taken or the network was built without adapters."""
        self._adapters.load(name, adapter)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter: new requests are refused, running ones finish. Raises RequestError for unknown names."""
        self._adapters.unload(name, self._scheduler.running.adapters)

    def adapter(self, name: str) -> LoadedAdapter:
        """Return an adapter. Raises RequestError if none is loaded by this name."""
        return self._adapters.get(name)

    @property
    def _adapters(self) -> Adapters:
        if self._scheduler.adapters is None:
            raise no_adapters()
        return self._scheduler.adapters

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestError if it can never be served, OverloadedError if the queue is full."""
        check_request(request, self.execution)
        self._scheduler.submit(request)

    def check(self, request: Request) -> None:
        """Raise RequestError for a request that can never be served."""
        check_request(request, self.execution)
        self._scheduler.check(request)

    def check_room(self, count: int) -> None:
        """Raise RequestError if `count` requests never fit the queue, OverloadedError if they do not fit now."""
        self._scheduler.queue.check_room(count)

    def cancel(self, request_id: str) -> bool:
        """Cancel a request; the next step returns what it has generated. Returns False for an unknown id."""
        return self._scheduler.cancel(request_id)

    def warm_up(self) -> None:
        """Compile the kernels and capture the CUDA graphs of decode steps before the first request.

        The sampler has already launched its kernels once, when the engine opened.
        """
        proposer = self._options.proposer
        draws = self._state.sampler.draws() if self._overlaps else ()
        self.execution.warm_up(draws or (None,), 0 if proposer is None else proposer.most_guesses)

    def close(self) -> None:
        """Write cached prefixes to the cache folder, if there is one."""
        self._state.transfers.close()

    def step(self) -> list[Finished]:
        """Decode one token for every running sequence, read prompts within the budget, return finished requests."""
        started_s, transfers = self._options.clock(), self._state.transfers
        waited_s = transfers.waited_s
        self._scheduler.statistics.steps += 1
        packed = self._packed
        batch = self._separate_calls(started_s) if packed is None else self._mixed_calls(started_s, packed)
        transfers.end_step()
        self._note_calls()
        return self._scheduler.end_step(batch, started_s, transfers.waited_s - waited_s)

    def _mixed_calls(self, started_s: float, packed: PackedCalls) -> Batch:
        """Carry out a batch with packed calls: the first one decodes, checks guesses and reads prompt chunks.

        Chunks that do not fit the first call get calls of their own. If steps overlap, the batch does not depend on
        the tokens in flight, which are collected once it is launched.
        """
        if not self._overlaps or self._scheduler.running.groups:
            self._collect()
        batch = self._ask(partial(self._scheduler.schedule, started_s))
        if not batch.prefill and not batch.decode.size:
            self._collect()  # there is nothing to do until their tokens are known
            return batch
        for number, chunks in enumerate(batch.prefill or [[]]):
            ready = batch.decode if number == 0 else batch.decode[:0]
            if not chunks and self._overlaps and can_launch(self._state, ready):
                launched = launch(self._state, ready)
                self._collect()
                self._in_flight.append(draw(self._state, launched))
            else:
                drafts = self._drafts(ready, is_captured=not chunks)
                self._mixed_call(packed, mixed_call(self._state, ready, chunks, drafts))
        return batch

    def _drafts(self, ready: Ints, *, is_captured: bool) -> Drafts | None:
        """Return draft tokens for sorted slots, or None; see `drafts_of`."""
        proposer = self._options.proposer
        if proposer is None or not ready.size:
            return None
        return drafts_of(self._state, ready, proposer, is_captured=is_captured)

    def _mixed_call(self, packed: PackedCalls, mixed: MixedCall) -> None:
        """Run a mixed call, then draw the next token of every decoding slot and every completed prompt."""
        state, proposer = self._state, self._options.proposer
        if mixed.drafts is not None:
            mark(state, mixed.call.decode)
        all_logits, hidden = packed.forward_packed(mixed.call), state.execution.next_hidden
        of_decoding = of_prompts = None
        if proposer is not None and hidden is not None:
            of_decoding, of_prompts = mixed.call.by_row(hidden)
        complete = []
        for chunk, span in zip(mixed.chunks, mixed.spans, strict=True):
            self._note_prompt(chunk, all_logits[span])
            if self._scheduler.read(chunk):
                complete.append((chunk.slot, span.stop - 1))
        if proposer is not None:
            prompts = mixed.call.prompts
            proposer.observe(state.slots.sequences, prompts, prompts.counts, of_prompts)
        slots = np.append(mixed.ready, [slot for slot, _ in complete]).astype(np.int64)
        rows = np.append(mixed.firsts, [row for _, row in complete]).astype(np.int64)
        logits = _rows_of(all_logits, rows)
        waits = state.running.is_beam[slots] if self._overlaps else np.ones(len(slots), np.bool_)
        ahead, at_once = np.flatnonzero(~waits), np.flatnonzero(waits)
        launched = launched_step(state, slots[ahead], _rows_of(logits, ahead)) if ahead.size else None
        self._collect()
        if launched is not None:
            self._in_flight.append(draw(state, launched, mixed.ready))
        if at_once.size:
            state.statistics.synchronous_steps += bool(waits[: len(mixed.ready)].any())
            if mixed.drafts is None:
                take(state, slots[at_once], _rows_of(logits, at_once))
            else:  # steps do not overlap: these are all slots
                guessed = Guessed(mixed.ready, mixed.drafts, mixed.firsts, of_decoding)
                self._take_guessed(mixed, guessed_of(state, guessed, all_logits), slots, (logits, all_logits))
        if proposer is not None:
            observe(state, mixed.call.decode, proposer, of_decoding)

    def _take_guessed(
        self, mixed: MixedCall, guessed: Guessed, slots: Ints, logits: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        """Take the next tokens of `slots` [R], those with guesses first, and every correct guess.

        logits: [R, V] of the slots' last tokens, and [N, V] of all tokens.
        """
        following, known = guessed.following, None
        if following is not None:
            known = np.append(following, np.full(len(slots) - len(following), UNKNOWN))
        goes_on = take(self._state, slots, logits[0], known)
        verify(self._state, mixed.call.decode, guessed, logits[1], goes_on[: len(mixed.ready)])

    def _note_calls(self) -> None:
        """Add the decoder's work since the last call of this method to the statistics."""
        calls, counted, statistics = self.execution.calls, self._counted, self._scheduler.statistics
        for name in ("network_calls", "computed_tokens", "padded_tokens"):
            new = getattr(calls, name) - getattr(counted, name)
            setattr(statistics, name, getattr(statistics, name) + new)
        self._counted = replace(calls)

    def _separate_calls(self, started_s: float) -> Batch:
        """Carry out a batch with separate calls: one decodes, the others read prompt chunks."""
        launched = self._launch_ahead()
        slots = None if launched is None else launched.slots
        batch = self._ask(partial(self._scheduler.schedule, started_s, slots))
        if launched is None and batch.decode.size:
            self._decode(batch.decode)
        for group in batch.prefill:
            self._prefill(group)
        return batch

    def _ask(self, decide: Callable[..., Batch]) -> Batch:
        """Return the scheduler's next batch, with caches and sampler ready for its calls.

        Tokens in flight are collected first if the decision depends on them.
        """
        try:
            batch = decide(in_flight=bool(self._in_flight))
        except TokensInFlight:
            self._collect()
            batch = decide(in_flight=False)
        self._state.transfers.run(batch)
        self._state.apply_changes()
        return batch

    def _launch_ahead(self) -> Launched | None:
        """Launch the next decode step if it can run before the last step's tokens are known, then collect those."""
        launched = None
        if self._overlaps:
            ready = self._ask(self._scheduler.schedule_ahead).decode
            launched = launch(self._state, ready) if can_launch(self._state, ready) else None
        self._collect()
        if launched is not None:
            self._in_flight.append(draw(self._state, launched))
        return launched

    def _decode(self, ready: Ints) -> None:
        """Decode slots that were not launched ahead; some may have been admitted in this step."""
        if self._overlaps and can_launch(self._state, ready):
            self._in_flight.append(draw(self._state, launch(self._state, ready)))
        else:
            decode(self._state, ready, self._options.proposer)

    def _collect(self) -> None:
        """Wait for the tokens in flight and take them."""
        for flight in self._in_flight:
            collect(self._state, flight)
        self._in_flight = []
        self._state.apply_changes()

    def _prefill(self, group: Sequence[Chunk]) -> None:
        """Read prompt chunks; a completed prompt draws its first token."""
        slots, scheduler = self._scheduler.slots, self._scheduler
        call = chunks_call(group, slots)
        logits = self.execution.forward(call)
        rows, last = [], []
        for row, chunk in enumerate(group):
            self._note_prompt(chunk, logits[row])
            if scheduler.read(chunk):
                rows.append(row)
                last.append(chunk.count - 1)
        if self._options.proposer is not None:
            self._options.proposer.observe(slots.sequences, call, call.counts, self.execution.next_hidden)
        if rows:
            index = [to_device(np.array(numbers, np.int64), logits.device) for numbers in (rows, last)]
            chosen = logits[index[0], index[1]] if logits.dim() == 3 else logits[index[0]]
            self._begin(np.array([group[row].slot for row in rows]), chosen)

    def _begin(self, ready: Ints, logits: torch.Tensor) -> None:
        """Draw the first tokens of completed prompts; if steps overlap, they stay in flight until the next launch."""
        if self._overlaps and not self._scheduler.running.is_beam[ready].any():
            self._in_flight.append(begin(self._state, ready, logits))
        else:
            take(self._state, ready, logits)

    def _note_prompt(self, chunk: Chunk, logits: torch.Tensor) -> None:
        """Keep the log probabilities of a prompt's own tokens for a request with `prompt_logprobs`. logits: [S, V]."""
        request = self._scheduler.running.requests[chunk.slot]
        top = request.settings.params.prompt_logprobs
        if top is None:
            return
        ids = np.asarray(request.prompt_ids[chunk.start + 1 : chunk.start + chunk.count + 1], np.int64)
        if not ids.size:  # generated tokens, read again after a wrong guess
            return
        request.prompt_logprobs += token_logprobs(logits[: len(ids)], to_device(ids, logits.device), top)()


def _has_kernel(execution: DecoderExecution) -> bool:
    """Whether the Triton kernel samples: tokens are on a GPU, and a trial launch succeeds there."""
    if is_on_host(execution.tokens):
        return False
    fault = trial(execution.tokens.device, execution.vocab_size)
    if fault:
        fix = "install a C compiler and Python's headers (`apt-get install gcc libc6-dev python3-dev`) and Triton"
        _LOG.warning("tokens are sampled by torch, which is slower: the kernel does not run: %s; fix: %s", fault, fix)
    return not fault


def _rows_of(logits: torch.Tensor, rows: Ints) -> torch.Tensor:
    """Return the given rows of logits [N, V]; no copy if they are all of them, in order."""
    return logits if len(rows) == len(logits) else logits[to_device(rows, logits.device)]
