"""In-flight batching: requests join and leave at every step; prompts are computed in chunks while others decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.adapters import no_adapters
from trtkit.llm.cache.imports import Imports
from trtkit.llm.cache.prefixes import Prefixes
from trtkit.llm.engine.decoding import decode
from trtkit.llm.engine.flight import Flight, Step, begin, can_launch, land, launch, take_off
from trtkit.llm.engine.options import EngineOptions, check_options
from trtkit.llm.engine.state import State
from trtkit.llm.engine.tokens import take
from trtkit.llm.sampling.kernel import has_triton
from trtkit.llm.sampling.logprobs import token_logprobs
from trtkit.llm.scheduler import Service, Waiting
from trtkit.llm.scheduler.admission import admit_waiting, preempt
from trtkit.llm.scheduler.chunks import Chunk, group_chunks, plan_chunks, prefill_call
from trtkit.llm.scheduler.costs import StepCosts
from trtkit.llm.scheduler.pages import check_pages, with_pages
from trtkit.llm.scheduler.request import check_request
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from trtkit.llm.adapters import Adapters, LoadedAdapter, PreparedAdapter
    from trtkit.llm.cache.host.tier import HostTier
    from trtkit.llm.engine.state import Statistics
    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.scheduler.request import Finished, Request
    from trtkit.llm.scheduler.slots import Slots
    from trtkit.llm.sequences import Ints


_NOBODY = np.zeros(0, np.int64)


class Engine:
    """Runs requests on one decoder's slots. Not for several threads at once.

    A request's tokens depend on nothing but itself: draws follow its seed and its position, never its neighbours.
    prefixes: beginnings of prompts that are cached.
    """

    def __init__(
        self, execution: DecoderExecution, options: EngineOptions | None = None, adapters: Adapters | None = None
    ) -> None:
        self.execution, self._options = execution, options or EngineOptions()
        check_options(self._options, execution)
        self._budget = self._options.token_budget or execution.max_prefill_length
        self._waiting: Waiting[Request] = Waiting(self._options.schedule, self._options.max_queue)
        proposer = self._options.proposer
        reserve = 1 if proposer is None else 1 + proposer.most_guesses
        imports = Imports(self._options.most_imported_bytes)
        has_kernel = execution.tokens.is_cuda and has_triton() if self._options.kernel is None else self._options.kernel
        host, clock = self._options.host_options, self._options.clock
        wants_overlap = execution.is_asynchronous if self._options.overlap is None else self._options.overlap
        self._overlaps = wants_overlap and execution.takes_ids and proposer is None
        costs = StepCosts(is_late=self._overlaps and execution.is_asynchronous)
        self._state = State(execution, reserve, imports, host, has_kernel, clock, costs, adapters)
        self._flights: list[Flight] = []
        self.prefixes = Prefixes(self._state, self._options.min_shared_tokens)

    @property
    def statistics(self) -> Statistics:
        """What has been done so far."""
        return self._state.statistics

    @property
    def host(self) -> HostTier:
        """What host memory has of caches; to be read only."""
        return self._state.host

    @property
    def slots(self) -> Slots:
        """Which slot holds what; to be read only, between steps."""
        return self._state.slots

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._state.running.requests or self._waiting or self._state.finished or self._flights)

    @property
    def free_slots(self) -> int:
        """Slots that nobody runs in."""
        return self._state.slots.free

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    def load_adapter(self, name: str, adapter: PreparedAdapter) -> None:
        """Let requests use an adapter. Raises RequestError for a name that is taken, or if the network takes none."""
        self._adapters.load(name, adapter)

    def unload_adapter(self, name: str) -> None:
        """Let no more requests use an adapter; those that have it go on. Raises RequestError for unknown names."""
        self._adapters.unload(name, self._state.running.adapters)

    def adapter(self, name: str) -> LoadedAdapter:
        """Return an adapter. Raises RequestError if none is loaded by this name."""
        return self._adapters.get(name)

    @property
    def _adapters(self) -> Adapters:
        if self._state.adapters is None:
            raise no_adapters()
        return self._state.adapters

    def submit(self, request: Request) -> None:
        """Take a request. Raises RequestError where no run could serve it, OverloadedError where the queue is full."""
        self.check(request)
        self._waiting.add(request, request.metrics.arrived_s)

    def check(self, request: Request) -> None:
        """Raise RequestError for a request that no run could serve."""
        check_request(request, self.execution)
        if self._state.pages is not None:
            check_pages(self._state.pages, request)

    def check_room(self, count: int) -> None:
        """Raise RequestError for more requests than ever fit the queue, OverloadedError for more than fit now."""
        self._waiting.check_room(count)

    def cancel(self, request_id: str) -> bool:
        """End a request; the next step returns it with what it has. Return whether there was one."""
        request = self._waiting.remove(request_id)
        slots = self._state.running.slots_of(request_id)
        if request is not None:
            self._state.report(request, list(request.generated), "abort")
        elif slots:
            self._state.finish(slots[0], "abort")
        return request is not None or bool(slots)

    def close(self) -> None:
        """Write what is cached to the folder for caches, if there is one."""
        self._state.host.close()

    def step(self) -> list[Finished]:
        """Run every sequence a token further, and prompts as far as the budget goes; return what has ended."""
        state, started_s = self._state, self._options.clock()
        waited_s = state.host.waited_s
        state.statistics.steps += 1
        launched = self._launch()
        for request in self._waiting.wake(started_s):
            what = f"its deadline passed after {request.scheduling.deadline_s:g} s in the queue"
            state.report(request, [], "error", what)
        admit_waiting(state, self._waiting, self._options.min_shared_tokens, self._land)
        ready = self._ready() if launched is None else launched.slots
        chunks = self._chunks(len(ready))
        account = self._account(started_s, ready, chunks)
        if launched is None and self._overlaps and can_launch(state, ready):  # who has just come
            self._flights.append(take_off(state, launch(state, ready)))
        elif launched is None and ready.size:
            decode(state, ready, self._options.proposer)
        for group in group_chunks(self._with_pages(chunks), self.execution.max_length):
            self._prefill(group)
        account()
        tokens = sum(chunk.count for chunk in chunks)
        seconds = self._options.clock() - started_s - (state.host.waited_s - waited_s)
        state.costs.note(seconds, tokens, decodes=bool(ready.size))
        state.host.write()
        finished, state.finished = state.finished, []
        if state.adapters is not None:
            state.adapters.evict_unloaded(state.running.adapters)
        return finished

    def _account(self, started_s: float, ready: Ints, chunks: list[Chunk]) -> Callable[[], None]:
        """Return what tells the queue about this step, once it is over: who runs now may have ended by then."""
        if not self._waiting.counts:
            return lambda: None
        running, clock = self._state.running, self._options.clock
        decoding, reading = (
            [running.requests[slot] for slot in slots if slot in running.requests]
            for slots in (ready.tolist(), [chunk.slot for chunk in chunks])
        )
        served = {id(request) for request in (*decoding, *reading)}
        idle = [request for request in running.requests.values() if id(request) not in served]

        def account() -> None:
            ended_s, tokens = clock(), sum(chunk.count for chunk in chunks)
            if self._waiting.account(Service(decoding, reading, idle, ended_s - started_s, ended_s, tokens)):
                running.rank_again()

        return account

    def _launch(self) -> Step | None:
        """Launch a step of those who decode, if it need not know the tokens of the last one; then take those."""
        ready = self._ready() if self._overlaps else _NOBODY
        step = launch(self._state, ready) if can_launch(self._state, ready) else None
        self._land()
        if step is not None:
            self._flights.append(take_off(self._state, step))
        return step

    def _ready(self) -> Ints:
        """Return the slots that decode; others give way where pages run out."""
        state, proposer = self._state, self._options.proposer
        ready = state.ready()
        if state.pages is None:
            return ready
        counts = np.full(len(ready), 1 if proposer is None else 1 + proposer.most_guesses)
        return with_pages(state, ready, counts, self._give_way, self._land)

    def _give_way(self, slots: list[int]) -> None:
        """Take all slots of a request, which waits for its turn again; beams begin again."""
        is_beam = bool(self._state.running.is_beam[slots[0]])
        requests = [preempt(self._state, slot) for slot in slots]
        if is_beam:
            requests[0].generated = []
        self._waiting.put_back(requests[0])

    def _land(self) -> None:
        """Take the tokens in flight."""
        for flight in self._flights:
            land(self._state, flight)
        self._flights = []

    def _chunks(self, decoding: int) -> list[Chunk]:
        """Return the pieces of prompts that this step computes; one token at least, so that no prompt waits forever."""
        unread = self._state.unread()
        if not unread.size:
            return []
        budget = max(1, self._budget - decoding)
        in_turn = self._state.running.in_turn(unread)
        return plan_chunks(in_turn, self._state.slots, budget, self.execution.max_prefill_length)

    def _with_pages(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the pieces of those who keep their slots when pages run out."""
        if self._state.pages is None or not chunks:
            return chunks
        slots, counts = (np.array([getattr(chunk, name) for chunk in chunks]) for name in ("slot", "count"))
        kept = with_pages(self._state, slots, counts, self._give_way, self._land)
        return [chunk for chunk in chunks if chunk.slot in kept]

    def _prefill(self, group: list[Chunk]) -> None:
        """Compute pieces of prompts; those that are complete give their first token."""
        slots = self._state.slots
        call = prefill_call(group, slots)
        logits = self.execution.forward(call)
        self._state.statistics.prompt_tokens += sum(chunk.count for chunk in group)
        rows, last = [], []
        for row, chunk in enumerate(group):
            self._note_prompt(chunk, logits[row])
            slots.cached[chunk.slot] += chunk.count
            self._state.keep_beginning(chunk.slot, chunk.start, self._options.snapshot_tokens)
            if slots.cached[chunk.slot] == slots.sequences.lengths[chunk.slot]:
                rows.append(row)
                last.append(chunk.count - 1)
        if self._options.proposer is not None:
            self._options.proposer.observe(slots.sequences, call, call.counts)
        if rows:
            chosen = logits[rows, last] if logits.dim() == 3 else logits[rows]
            self._begin(np.array([group[row].slot for row in rows]), chosen)

    def _begin(self, ready: Ints, logits: torch.Tensor) -> None:
        """Draw the first tokens of prompts; if steps overlap, the host takes them after it has launched the next."""
        if self._overlaps and not self._state.running.is_beam[ready].any():
            self._flights.append(begin(self._state, ready, logits))
        else:
            take(self._state, ready, logits)

    def _note_prompt(self, chunk: Chunk, logits: torch.Tensor) -> None:
        """Keep the log probabilities of a prompt's own tokens, where asked. logits: [S, V]."""
        request = self._state.running.requests[chunk.slot]
        top = request.settings.params.prompt_logprobs
        if top is None:
            return
        ids = np.asarray(request.prompt_ids[chunk.start + 1 : chunk.start + chunk.count + 1], np.int64)
        if not ids.size:  # tokens that are read again after a wrong guess
            return
        request.prompt_logprobs += token_logprobs(logits[: len(ids)], to_device(ids, logits.device), top)()
