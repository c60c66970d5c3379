"""A decoder on TensorRT: fixed device buffers, caches updated in place, and a CUDA graph per size of decode step."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.llm.execution.adapters import adapter_memory
from trtkit.llm.execution.cached_places import NewTokens
from trtkit.llm.execution.call import step_inputs
from trtkit.llm.execution.execution import CallCounts, NeuronCounts
from trtkit.llm.execution.paged_cache import open_cache
from trtkit.llm.execution.plan import check_alignment, dtype_of
from trtkit.llm.execution.step import StreamStep
from trtkit.llm.execution.warm_up import warm_up
from trtkit.network.decoder import BLOCK_COUNTS, EMBEDS, FINAL_HIDDEN_STATES, HIDDEN_STATES, NEXT_HIDDEN_STATES
from trtkit.network.input_spec import kv_window
from trtkit.network.speculators import DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN
from trtkit.runtime.device import to_device, write
from trtkit.runtime.loaded_engine import LoadedEngine
from trtkit.runtime.runtime_cache import cache_file
from trtkit.threads import ends_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.backends import Backend
    from trtkit.llm.execution.call import Call
    from trtkit.llm.execution.execution import Draw, PackedCalls, RankExecution
    from trtkit.llm.execution.kv_cache import KvCache
    from trtkit.llm.execution.plan import DecoderPlan
    from trtkit.llm.execution.pool_size import CacheSize
    from trtkit.llm.sequences import Ints
    from trtkit.network.input_spec import InputSpec, Role
    from trtkit.runtime.communicator import Communicator
    from trtkit.runtime.device import CapturedGraph, Device, Stream
    from trtkit.runtime.loaded_engine import EngineTensor, ExecutionContext


_SLOT = 3  # the column of slots in rows
_PREFILL, _DECODE = 0, 1  # the engine's profiles, in the order of `decoder_profiles`
_CONNECTING_S = 120.0  # NCCL takes seconds to set up rings and buffers
_LEAST_SHARE = 16  # smallest share of the slots that a step of linear caches runs
_MOST_GRAPHS = 128  # each holds GPU memory; the least recently used is dropped


class EngineDecoder:
    """A RankExecution on a device. has_cuda_graphs: whether decode steps are captured and replayed.

    defers_weights: see LoadedEngine; calls then need `load_weights` first.

    Raises BackendError if TensorRT cannot load the plan, GenerationError if a slot's cache does not start at an address
    that TensorRT accepts.
    """

    packed: PackedCalls | None = None

    def __init__(
        self,
        backend: Backend,
        plan: DecoderPlan,
        size: CacheSize,
        device: Device,
        *,
        has_cuda_graphs: bool = True,
        defers_weights: bool = False,
    ) -> None:
        options, specs, slots = plan.options, plan.inputs, size.slots
        self._note_calls(plan)
        check_alignment(plan, slots)
        self._stream = (size.pool.model and size.pool.model.stream) or device.stream()
        kernels = cache_file(plan.file.sha256, device.environment)
        self.engine = LoadedEngine(backend, plan.file.path, self._stream, kernels, defers_weights=defers_weights)
        self.slots = slots
        self.max_prefill_length = options.max_prefill_length
        self.hidden = next((spec for spec in specs if spec.name in (HIDDEN_STATES, DRAFT_HIDDEN)), None)
        has_all_logits = options.logits == "all" and size.pool.model is None
        by_token = has_all_logits and self.packed is None
        self._outputs = OutputMemory(self._stream, self.engine.outputs, has_all_logits=by_token)
        self.has_all_logits = self._outputs.has_all_logits or has_all_logits
        self.speculator: RankExecution | None = None
        self.next_hidden: torch.Tensor | None = None
        self._embeddings = plan.embeddings
        self._table = self._embedding_table() if plan.has_table else None
        self.is_asynchronous, self.takes_ids = True, self._embeddings is None or self._table is not None
        self.vocab_size = self._outputs.vocab_size
        self.cache = open_cache(
            specs, slots, options.max_sequence_length, dtype_of, self._stream, size.pool, plan.context
        )
        self._own = self.cache.part(specs)  # without the draft head's
        self._written = [spec for spec in self._own.specs if spec.updated]  # a draft head may only read caches
        self.max_length = self.cache.max_length
        self._new_states = {  # the engine must not write to states that it still reads
            spec.name: self._stream.empty((slots, *spec.shape[1:]), dtype_of(spec)) for spec in self.cache.states
        }
        most_ranks = 0 if options.lora is None else options.lora.max_rank_sum
        self.adapters = adapter_memory(specs, most_ranks, dtype_of, self._stream)
        self._specs = [spec for spec in specs if not spec.is_kept and spec.feeder not in ("adapter", "slots")]
        self.tokens = self._stream.empty((slots,), torch.int64)
        self.calls = CallCounts(token_multiple=plan.token_multiple, neurons=self._neuron_counts())
        self._graphs: dict[StreamStep, CapturedGraph | None] = {}
        self._captured_sizes = {1}
        self._has_cuda_graphs = has_cuda_graphs
        self._communicator: Communicator | None = None
        self._room = 0
        self.reserve(slots)
        self.description = f"{backend.name} {backend.version} on {device.name}"

    def _note_calls(self, plan: DecoderPlan) -> None:
        """Prepare the counters of network calls, before other memory is allocated."""

    def _embedding_table(self) -> torch.Tensor:
        """Return a copy of the embedding table on the device."""
        assert self._embeddings is not None
        there = self._stream.empty(self._embeddings.table.shape, self._embeddings.table.dtype)
        write(self._stream, there, self._embeddings.table)
        return there

    def _neuron_counts(self) -> NeuronCounts | None:
        """Return the neuron counter if the network reads active neurons only, and allocate the counts of a call."""
        self._block_counts: torch.Tensor | None = None
        if BLOCK_COUNTS not in self.engine.outputs:
            return None
        output = self.engine.outputs[BLOCK_COUNTS]
        self._block_counts = self._stream.empty(output.shape, output.dtype)
        totals = self._stream.empty((3,), torch.int64)
        write(self._stream, totals, torch.zeros(3, dtype=torch.int64))
        return NeuronCounts(totals)

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:
        """Run new tokens; see DecoderExecution."""
        call.check(self.slots, self.max_length)
        self._stream.wait_for_current()  # it may still use the last call's logits
        call = self.cache.prepare(call)
        self.cache.advance(call)
        self.cache.begin(call)
        self.reserve(call.ids.size)
        if call.runs_together:
            self._run(call, draw)
        else:
            self._run_groups(call, draw)
        self._stream.hold_current()
        shape, is_joined = call.ids.shape, not call.runs_together
        self.next_hidden = self._outputs.of(NEXT_DRAFT_HIDDEN, *shape, is_joined=is_joined)
        output = self._outputs.of(self._outputs.main, *shape, is_joined=is_joined)
        assert output is not None
        return output

    def _run(self, call: Call, draw: Draw | None = None) -> None:
        """Enqueue a call's work."""
        self.calls.add(call.ids.size, int(call.counts.sum()))
        self._copy_inputs(call)
        self._replay(self._step(call, draw))

    def _replay(self, step: StreamStep) -> None:
        """Enqueue a step whose inputs are set, from its CUDA graph; the graph is kept if many steps have its size."""
        graph = self._graphs.get(step)
        if graph is not None:
            self._graphs[step] = self._graphs.pop(step)  # the last entry is the most recently used
            graph.replay()
            return
        self._launch(step)
        if self._is_captured(step) and step not in self._graphs:
            self._keep_graph(step)

    def _is_captured(self, step: StreamStep) -> bool:
        """Whether steps of this size run from CUDA graphs."""
        has_prompts = step.reads_prompts or step.has_vectors
        return self._has_cuda_graphs and step.size in self._captured_sizes and not has_prompts

    def _run_groups(self, call: Call, draw: Draw | None) -> None:
        """Run the groups of a call's rows one after the other."""
        rows, size = call.ids.shape
        for members, group in call.groups():
            padded = min(1 << (len(members) - 1).bit_length(), rows) if size == 1 else len(members)
            self._run(group.padded(padded))
            self._outputs.join(members, padded, size)
        if draw is not None:
            joined = self._outputs.of(self._outputs.main, rows, size, is_joined=True)
            assert joined is not None
            slots = self._joined_slots[: len(joined)]
            write(self._stream, slots, call.slots.astype(np.int32))
            self._stream.run(partial(draw, joined.view(-1, self.vocab_size), slots))

    def stream_weights(self, budget_bytes: int) -> None:
        """Keep `budget_bytes` of the weights on the GPU; see LoadedEngine.

        Steps are then neither captured nor overlapped: each launch waits for its weights.
        """
        self.engine.stream_weights(budget_bytes)
        self.is_asynchronous = not self.engine.is_streaming
        self._has_cuda_graphs = self._has_cuda_graphs and self.is_asynchronous

    def share_cache(self, cache: KvCache) -> None:
        """Share another cache's memory; see RankExecution."""
        self.cache.share(cache)
        held = self._own
        self._own = self.cache.part([*held.specs, *held.states, *held.encoded, *held.of_prompts])

    def load_weights(self) -> None:
        """Load deferred weights onto the GPU; see RankExecution."""
        self.engine.load_weights()

    def unload_weights(self) -> None:
        """Free deferred weights on the GPU; see RankExecution."""
        self.engine.unload_weights()

    def slots_to_run(self, slots: slice) -> slice:
        """Return `slots`, widened with CUDA graphs to a power of two of slots, or all, so that few sizes are captured.

        If a graph depends on its first slot, that is a multiple of half their number.
        """
        return few_slots(slots, self.slots) if self._has_cuda_graphs else slots

    def tokens_to_run(self, tokens: int, most: int) -> int:
        """Return `tokens`; with CUDA graphs `most`, since calls of that size are captured once."""
        if not self._has_cuda_graphs:
            return tokens
        self._captured_sizes.add(most)
        return most

    def prepare(self) -> None:
        """Create execution contexts and scratch memory, so that a full GPU is an error when the model opens."""
        self.engine.context(_PREFILL)
        self.engine.context(_DECODE, is_captured=self._has_cuda_graphs)
        if self.speculator is not None:
            self.speculator.prepare()

    def warm_up(self, draws: Sequence[Draw | None], guesses: int) -> None:
        """Compile and capture decode steps before the first request; save compiled kernels. See `warm_up.py`."""
        self.reserve_prompts()  # graphs hold the addresses of buffers
        windows, length = {self.max_length}, self.max_length
        if "key_positions" in self._inputs or self.cache.page_tokens is not None:
            windows = {kv_window(1 << bit, length) for bit in range(length.bit_length() + 1)}
        warm_up(self, draws, guesses, sorted(windows), _MOST_GRAPHS)
        self._stream.synchronize()
        self.engine.save_kernels()

    def layer_seconds(self, call: Call) -> dict[str, float]:
        """Run new tokens without a CUDA graph; return the time of each of the engine's layers in order."""
        call.check(self.slots, self.max_length)
        call = self.cache.prepare(call)
        self.cache.positions[call.rows] = -1  # a timed call need not continue a sequence
        rows, size = call.ids.shape
        self.reserve(rows * size)
        self._copy_inputs(call)
        step = self._step(call)
        return self._context(step).layer_seconds(partial(self._launch, step))

    def connect(self, communicator: Communicator) -> None:
        """Connect the engine's collectives to the other ranks, context by context in an order that is the same on all.

        TensorRT waits for the others with Python's lock held (`set_communicator` in python/src/infer/pyCore.cpp), so
        that a missing rank would go unnoticed here. All ranks have met when they created the communicator.
        """
        self._communicator = communicator
        contexts = [self.engine.context(profile) for profile in (_PREFILL, _DECODE)]
        with ends_after(_CONNECTING_S, f"ranks: the others have not connected within {_CONNECTING_S:.0f} seconds"):
            for context in contexts:
                context.set_communicator(communicator)

    def abort(self) -> None:
        """Abort collectives that wait for a lost rank; callable from any thread."""
        if self._communicator is not None:
            self._communicator.abort()

    def close(self) -> None:
        """Save the kernels compiled for this GPU for the next start, and free the memory."""
        if self._communicator is None:  # a rank's pending work may wait for a lost rank
            self._stream.synchronize()
        self._graphs.clear()
        if self.speculator is not None:
            self.speculator.close()
        self.engine.close()
        self.cache.close()
        self._own.close()
        if self._communicator is not None:
            self._communicator.close()

    def _context(self, step: StreamStep) -> ExecutionContext:
        """Return the context of the profile that a step runs on."""
        return self.engine.context(_DECODE if step.decodes else _PREFILL, is_captured=self._is_captured(step))

    def reserve_prompts(self) -> None:
        """Allocate for the largest prefill call; up to half of a call of several rows may be padding."""
        self.reserve(min(self.slots, 2) * self.max_prefill_length)

    def reserve(self, tokens: int) -> None:
        """Allocate inputs, logits and, with 8-bit caches, new keys and values of calls with `tokens` new tokens."""
        if tokens <= self._room:
            return
        self._room = 1 << (tokens - 1).bit_length()
        self._graphs.clear()  # graphs hold the addresses
        self._inputs = {spec.name: self._buffer(spec) for spec in self._specs}
        if "key_positions" in self._inputs:  # calls differ in how many key positions they read
            positions = torch.arange(self.max_length, dtype=torch.int32)
            write(self._stream, self._inputs["key_positions"], positions)
        is_read_only = self.cache.page_tokens is not None or not self.cache.context.is_whole
        read_only = [spec for spec in self._written if is_read_only or dtype_of(spec).itemsize == 1]
        sizes = {spec.name: spec.size_of("key_value_heads") * spec.size_of("head_dim") for spec in read_only}
        self._new = {
            spec.name: self._stream.empty((self._room * sizes[spec.name],), dtype_of(spec)) for spec in read_only
        }
        self._new_of_prompts: dict[str, torch.Tensor] = {}  # by the output of a packed network
        self._rows = self._stream.empty((self._room, 5), torch.int32)  # id, start, count, slot and adapter
        self._joined_slots = self._stream.empty((self._room,), torch.int32)
        self._outputs.reserve(self._room, self.slots, is_joined=self.cache.page_tokens is not None)

    def _copy_inputs(self, call: Call) -> None:
        """Enqueue the copies of a call's inputs."""
        for name, value in self._feed(call).items():
            write(self._stream, self._inputs[name][: value.numel()], value)
        rows = call.step_rows()
        write(self._stream, self._rows[: len(rows)], rows)

    def _feed(self, call: Call) -> dict[str, torch.Tensor]:
        """Return a call's inputs, except caches and those that a decode step computes from its rows on the device."""
        feed: dict[str, torch.Tensor] = {}
        if call.ids.shape[1] > 1:
            feed = {name: torch.from_numpy(value) for name, value in call.feed().items() if name in self._inputs}
        elif call.pages is not None and "page_table" in self._inputs:
            feed = {"page_table": torch.from_numpy(call.pages.table)}
        if "rope_position_ids" in self._inputs:
            feed["rope_position_ids"] = torch.from_numpy(call.rope_position_ids())
        if "visible_lengths" in self._inputs:
            feed["visible_lengths"] = torch.from_numpy(call.visible_lengths())
        if self._embeddings is not None and (self._table is None or call.ids.shape[1] > 1 or call.has_vectors):
            feed[EMBEDS] = self._embeddings.inputs(call, self._embeds)
        if self.hidden is not None and call.hidden is not None:
            feed[self.hidden.name] = call.hidden
        return feed

    @property
    def _embeds(self) -> InputSpec:
        """The input that takes embeddings instead of token ids."""
        return next(spec for spec in self._specs if spec.name == EMBEDS)

    def _unpack(self, step: StreamStep) -> None:
        """Compute a decode step's inputs on the device."""
        rows = step.rows
        inputs = step_inputs(self._rows[:rows], self.tokens)
        for name in inputs.keys() & self._inputs.keys():
            self._inputs[name][:rows].copy_(inputs[name])
        if self._table is not None and not step.has_vectors:
            size, width = self._table.shape[1], self._embeds.size_of("hidden_size")
            vectors = self._inputs[EMBEDS][: rows * width].view(rows, width)
            vectors[:, :size] = self._table[inputs["input_ids"].long()]
            vectors[:, size:].zero_()

    def _buffer(self, spec: InputSpec) -> torch.Tensor:
        """Return a buffer for an input of as many tokens as are allocated."""
        most: dict[Role, int] = {"batch": self._room, "new_tokens": 1, "kv_window": self.max_length}
        most["row_pages"] = -(-self.max_length // (self.cache.page_tokens or self.max_length))
        return self._stream.empty((math.prod(spec.shape_at(most)),), dtype_of(spec))

    def _step(self, call: Call, draw: Draw | None = None) -> StreamStep:
        """Return what a call enqueues after its inputs."""
        rows, size = call.ids.shape
        window = call.window(self.max_length) if "key_positions" in self._inputs else self.max_length
        row_pages = 0 if call.pages is None else call.pages.table.shape[1]
        ranks = 0 if self.adapters is None else self.adapters.ranks
        first = call.first_slot if self.cache.needs_neighbors else 0
        has_vectors = self._table is not None and size == 1 and call.has_vectors
        assert not (has_vectors and (call.ids < 0).any())  # the host looks up the embeddings of all rows
        return StreamStep(first, rows, size, window, row_pages, ranks, draw, has_vectors=has_vectors)

    def _keep_graph(self, step: StreamStep) -> None:
        """Capture a step right after its first launch, in which TensorRT and Triton did their setup outside the graph.

        Its context has all shapes and addresses. If capturing fails, such steps are launched from then on.
        """
        if len(self._graphs) == _MOST_GRAPHS:
            self._graphs.pop(next(iter(self._graphs)))
        is_capturable = self._context(step).is_capturable()
        self._graphs[step] = self._stream.capture(partial(self._compute, step)) if is_capturable else None

    def _launch(self, step: StreamStep) -> None:
        """Enqueue a step whose inputs are set."""
        self._prepare(step)
        self._compute(step)

    def _compute(self, step: StreamStep) -> None:
        """Enqueue a prepared step: its inputs if it decodes, the network, and its draw."""
        if step.size == 1:
            self._stream.run(partial(self._unpack, step))
        self._enqueue(step)
        if step.draw is not None:
            slots = self._rows[: step.rows, _SLOT]
            self._stream.run(partial(step.draw, self._outputs.flat(step.rows), slots))

    def _prepare(self, step: StreamStep) -> None:
        """Set the shapes and addresses of a step's context."""
        context = self._context(step)
        for spec in self._specs:
            context.set_input(spec.name, spec.shape_at(step.sizes), self._inputs[spec.name])
        for name, array in {} if self.adapters is None else self.adapters.arrays.items():
            context.set_input(name, (step.ranks, *array.shape[1:]), array)  # zero ranks need an address, too
        rows, prompts = slice(step.first, step.first + step.rows), step.prompts
        caches = self.cache.view(rows)
        if prompts is not None:
            some = slice(prompts.first, prompts.first + max(prompts.rows, 1))  # zero rows need an address, too
            for name, cache in self._own.view_of_prompts(some).items():
                context.set_input(name, (prompts.rows, *cache.shape[1:]), cache)
            for name, array in self._new_of_prompts.items():
                context.set_address(name, array)
        for spec in self._own.specs:
            cache = caches[spec.name]
            context.set_input(spec.name, tuple(cache.shape), cache)
            if spec.updated:
                context.set_address(spec.updated, self._new.get(spec.name, cache))
        for spec in self.cache.encoded:
            context.set_input(spec.name, tuple(caches[spec.name].shape), caches[spec.name])
        for spec in self.cache.states:
            context.set_input(spec.name, tuple(caches[spec.name].shape), caches[spec.name])
            context.set_address(spec.updated, self._new_states[spec.name])
        for name, array in self._outputs.addresses():
            context.set_address(name, array)
        if self._block_counts is not None:
            context.set_address(BLOCK_COUNTS, self._block_counts)

    def _enqueue(self, step: StreamStep) -> None:
        """Enqueue the network of a prepared step and its cache updates."""
        self._context(step).enqueue()
        if self.calls.neurons is not None and self._block_counts is not None:
            self._stream.run(partial(self.calls.neurons.add, self._block_counts))
        rows = slice(step.first, step.first + step.rows)
        self.cache.keep(rows, {name: new[: step.rows] for name, new in self._new_states.items()})
        if self._new:
            self._stream.run(partial(self._append, step))

    def _append(self, step: StreamStep) -> None:
        """Append new keys and values to each slot."""
        shapes = {
            spec.name: (step.rows, spec.size_of("key_value_heads"), step.size, spec.size_of("head_dim"))
            for spec in self._written
        }
        new = {name: self._new[name][: math.prod(shape)].view(shape) for name, shape in shapes.items()}
        _, starts, counts, _, _ = self._rows[: step.rows].long().unbind(1)
        table = None
        if step.row_pages:
            table = self._inputs["page_table"][: step.rows * step.row_pages].view(step.rows, step.row_pages)
        slots = torch.arange(step.first, step.first + step.rows, device=starts.device)
        self.cache.append(NewTokens(slots, starts, counts, table), new)


def few_slots(slots: slice, count: int) -> slice:
    """Return consecutive slots that include `slots`: a power of two of them, starting at a multiple of half of that.

    The result is at most twice the next power of two, or all of `count`; but at least a 16th of `count`, which limits
    the possible ranges to about 60, so that graphs of all of them, with each of two draws, can be kept.
    """
    size = 1 << (max(slots.stop - slots.start, -(-count // _LEAST_SHARE)) - 1).bit_length()
    while size < count:
        half = max(size // 2, 1)
        start = min(slots.start // half * half, count - size)
        if start + size >= slots.stop:
            return slice(start, start + size)
        size *= 2
    return slice(0, count)


class OutputMemory:
    """Memory for logits or a pipeline stage's hidden states, and for the hidden states that a draft head reads.

    outputs: the engine's, by name. main: name of the first of these. has_all_logits: whether calls return logits of
    every token.
    """

    def __init__(self, stream: Stream, outputs: Mapping[str, EngineTensor], *, has_all_logits: bool) -> None:
        self.main = "logits" if "logits" in outputs else NEXT_HIDDEN_STATES
        self.has_all_logits = has_all_logits or self.main == NEXT_HIDDEN_STATES
        self._stream = stream
        names = (self.main, NEXT_DRAFT_HIDDEN, FINAL_HIDDEN_STATES)
        self._outputs = {name: outputs[name] for name in names if name in outputs}
        self._arrays: dict[str, torch.Tensor] = {}
        self._joined: dict[str, torch.Tensor] = {}

    @property
    def vocab_size(self) -> int:
        """Size of the main output's last axis."""
        size: int = self._outputs[self.main].shape[-1]
        return size

    def reserve(self, room: int, slots: int, *, is_joined: bool) -> None:
        """Allocate for calls of `room` new tokens. is_joined: whether groups of rows may run one after the other."""
        self._arrays = {name: self._empty(name, room, slots) for name in self._outputs}
        self._joined = {name: self._empty(name, room, slots) for name in self._outputs} if is_joined else {}

    def addresses(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the address at which the engine writes each output."""
        yield from self._arrays.items()

    def flat(self, rows: int) -> torch.Tensor:
        """Return the main output of a decode step, [R, V]."""
        return self._arrays[self.main][:rows]

    def join(self, members: Ints, rows: int, size: int) -> None:
        """Copy a group's outputs, of `rows` rows with padding, to its rows of the whole call."""
        for name in self._outputs:
            part = self._shaped(self._arrays, name, rows, size)[: len(members)]
            self._stream.run(partial(_put, self._joined[name], members, size, part))

    def of(self, name: str, rows: int, size: int, *, is_joined: bool) -> torch.Tensor | None:
        """Return an output of a call of R rows and S new tokens as [R, S, V], or as [R, V] of each row's last token."""
        if name not in self._outputs:
            return None
        return self._shaped(self._joined if is_joined else self._arrays, name, rows, size)

    def _shaped(self, arrays: Mapping[str, torch.Tensor], name: str, rows: int, size: int) -> torch.Tensor:
        array = arrays[name]
        return array[: rows * size].view(rows, size, -1) if self._is_of_all(name) else array[:rows]

    def _is_of_all(self, name: str) -> bool:
        return self.has_all_logits if name == self.main else len(self._outputs[name].shape) == 3

    def _empty(self, name: str, room: int, slots: int) -> torch.Tensor:
        output = self._outputs[name]
        return self._stream.empty((room if self._is_of_all(name) else slots, output.shape[-1]), output.dtype)


def _put(target: torch.Tensor, rows: Ints, size: int, values: torch.Tensor) -> None:
    if values.dim() == 3:
        target = target[: target.shape[0] // size * size].view(-1, size, values.shape[-1])
    target[to_device(rows, target.device)] = values
