"""A decoder on TensorRT: device buffers set once, caches updated in place, a CUDA graph per decode batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from trtkit.dtypes import from_tensorrt
from trtkit.engine.decoders import llm_options
from trtkit.errors import GenerationError
from trtkit.runtime.decoder.embeddings import bundle_embeddings
from trtkit.runtime.decoder.runtime_cache import context_with_cache, save_cache
from trtkit.runtime.layer_profiler import layer_profiler

if TYPE_CHECKING:
    from trtkit.backends import Backend
    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.decoder.call import Call

_PREFILL, _DECODE = 0, 1  # the engine's profiles, in the order that `decoder_profiles` gives them


class EngineDecoder:
    """A DecoderExecution on the GPU that is here. has_cuda_graphs: whether decode steps are captured and replayed.

    Raises GenerationError where TensorRT does not load the plan on this GPU.
    """

    def __init__(self, backend: Backend, bundle: Bundle, slots: int, *, has_cuda_graphs: bool = True) -> None:
        options = llm_options(bundle.manifest.config)
        self._backend, self._trt, self._logger, self._bundle = backend, backend.trt, backend.logger(), bundle
        self._runtime = backend.trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(bundle.engine_path().read_bytes())
        if self._engine is None:
            fix = "build it for this GPU (`--target`), with the TensorRT that is installed here"
            where = str(bundle.engine_path())
            raise GenerationError(f"{backend.name} {backend.version} does not load the plan here", where, fix)
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._contexts, self._runtime_cache = context_with_cache(self._engine, bundle, self._stream.cuda_stream)
        self.slots, self.max_length = slots, options.max_sequence_length
        self.max_prefill_length, self.has_all_logits = options.max_prefill_length, options.logits == "all"
        self._embeddings = bundle_embeddings(bundle.path)
        self._allocate(slots)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._has_cuda_graphs = has_cuda_graphs
        self.description = f"{backend.name} {backend.version} on {torch.cuda.get_device_name()}"

    def forward(self, call: Call) -> torch.Tensor:
        """Run new tokens; see DecoderExecution."""
        call.check(self.slots, self.max_length)
        rows, size = call.ids.shape
        with torch.cuda.stream(self._stream):
            self._copy_inputs(call)
            is_decode = size == 1
            if is_decode and call.first_slot == 0 and self._has_cuda_graphs:
                self._decode_graph(rows).replay()
            else:
                self._enqueue(self._contexts[_DECODE if is_decode else _PREFILL], call.first_slot, rows, size)
            shape = (rows, size, self.vocab_size) if self.has_all_logits else (rows, self.vocab_size)
            logits = self._logits[: rows * size if self.has_all_logits else rows].view(shape)
        torch.cuda.current_stream().wait_stream(self._stream)
        return logits

    def layer_seconds(self, call: Call) -> dict[str, float]:
        """Run new tokens without a CUDA graph; return how long each of the engine's layers took, in order."""
        call.check(self.slots, self.max_length)
        rows, size = call.ids.shape
        context, profiler = self._contexts[_DECODE if size == 1 else _PREFILL], layer_profiler(self._backend)
        context.profiler = profiler
        try:
            with torch.cuda.stream(self._stream):
                self._copy_inputs(call)
                self._enqueue(context, call.first_slot, rows, size)
            self._stream.synchronize()
        finally:
            context.profiler = None
        return dict(profiler.seconds)

    def copy(self, source: int, target: int, tokens: slice) -> None:
        """Copy cached tokens between slots."""
        with torch.cuda.stream(self._stream):
            for cache in self._caches.values():
                cache[target, :, tokens].copy_(cache[source, :, tokens])

    def close(self) -> None:
        """Keep what was compiled for this GPU for the next start, and give the memory back."""
        save_cache(self._runtime_cache, self._bundle)
        self._graphs.clear()
        self._caches.clear()

    def _allocate(self, slots: int) -> None:
        """Make the device buffers: one for each small input, each cache and the logits."""
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        is_input = self._trt.TensorIOMode.INPUT
        inputs = [name for name in names if self._engine.get_tensor_mode(name) == is_input]
        tokens = max(slots * self.max_prefill_length, slots)
        self._caches = {name: self._cache(name, slots) for name in inputs if name.startswith("past_")}
        self._new = self._appended(tokens)
        self._inputs = {name: self._buffer(name, tokens) for name in inputs if name not in self._caches}
        self.vocab_size = int(self._engine.get_tensor_shape("logits")[-1])
        rows = tokens if self.has_all_logits else slots
        self._logits = torch.empty(rows, self.vocab_size, dtype=torch.float32, device="cuda")

    def _copy_inputs(self, call: Call) -> None:
        """Copy a call's inputs to the device."""
        for name, value in self._feed(call).items():
            self._inputs[name][: value.numel()].copy_(value.reshape(-1), non_blocking=True)

    def _appended(self, tokens: int) -> dict[str, torch.Tensor]:
        """Return room for the new keys and values that engines with caches in eight bits give; for others none."""
        eight_bits = [name for name in self._caches if self._dtype(name).itemsize == 1]
        sizes = {name: self._caches[name].shape[1] * self._caches[name].shape[3] for name in eight_bits}
        return {
            name: torch.zeros(tokens * size, dtype=self._dtype(name), device="cuda") for name, size in sizes.items()
        }

    def _feed(self, call: Call) -> dict[str, torch.Tensor]:
        """Return the inputs of a call but its caches, on the host."""
        feed = {name: torch.from_numpy(value) for name, value in call.feed().items() if name in self._inputs}
        if "rope_position_ids" in self._inputs:
            feed["rope_position_ids"] = torch.from_numpy(call.rope_position_ids())
        if self._embeddings is not None:
            feed["inputs_embeds"] = self._embeddings.inputs(call)
        return feed

    def _dtype(self, name: str) -> torch.dtype:
        found: torch.dtype = getattr(torch, from_tensorrt(self._engine.get_tensor_dtype(name).name).torch)
        return found

    def _buffer(self, name: str, tokens: int) -> torch.Tensor:
        """Return room for an input of up to `tokens` tokens."""
        static = math.prod(size for size in self._engine.get_tensor_shape(name) if size > 0)
        return torch.zeros(tokens * static, dtype=self._dtype(name), device="cuda")

    def _cache(self, name: str, slots: int) -> torch.Tensor:
        """Return an empty cache [slots, K, T, H]."""
        shape = tuple(self._engine.get_tensor_shape(name))[1:]
        return torch.zeros(slots, *shape, dtype=self._dtype(name), device="cuda")

    def _decode_graph(self, rows: int) -> torch.cuda.CUDAGraph:
        """Return the CUDA graph of a decode step of slots 0 to `rows`, captured at its first use."""
        if rows not in self._graphs:
            self._enqueue(self._contexts[_DECODE], 0, rows, 1)  # what TensorRT sets up at first use is not captured
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._enqueue(self._contexts[_DECODE], 0, rows, 1)
            self._graphs[rows] = graph
        return self._graphs[rows]

    def _enqueue(self, context: Any, first: int, rows: int, size: int) -> None:
        """Give the context its shapes and addresses, and run it on the stream."""
        for name, buffer in self._inputs.items():
            dynamic = iter((rows, size))  # an input's sizes at run time are the batch, then the new tokens
            shape = tuple(next(dynamic) if axis < 0 else axis for axis in self._engine.get_tensor_shape(name))
            context.set_input_shape(name, shape)
            context.set_tensor_address(name, buffer.data_ptr())
        for name, cache in self._caches.items():
            context.set_input_shape(name, (rows, *cache.shape[1:]))
            context.set_tensor_address(name, cache[first].data_ptr())
            present = self._new.get(name, cache[first])
            context.set_tensor_address(name.replace("past_", "present_", 1), present.data_ptr())
        context.set_tensor_address("logits", self._logits.data_ptr())
        if not context.execute_async_v3(self._stream.cuda_stream):
            raise GenerationError("TensorRT could not run the engine", fix="its log says why")
        if self._new:
            self._append(first, rows, size)

    def _append(self, first: int, rows: int, size: int) -> None:
        """Write new keys and values behind those of each slot; places come from the device, as CUDA graphs need."""
        starts = self._inputs["write_indices"][:rows].long()
        places = starts[:, None] + torch.arange(size, device="cuda")  # [R, S]
        slots = torch.arange(first, first + rows, device="cuda")[:, None, None]
        for name, cache in self._caches.items():
            heads, head_dim = cache.shape[1], cache.shape[3]
            new = self._new[name][: rows * heads * size * head_dim].view(rows, heads, size, head_dim)
            head = torch.arange(heads, device="cuda")[None, :, None]
            cache.view(torch.int8)[slots, head, places[:, None, :]] = new.view(torch.int8)
