"""A decoder on TensorRT: device buffers set once, caches updated in place, a CUDA graph per decode batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from trtkit.dtypes import DTYPES
from trtkit.engine.decoders import llm_options
from trtkit.errors import GenerationError
from trtkit.runtime.decoder.embeddings import bundle_embeddings
from trtkit.runtime.decoder.kv_cache import KvCache
from trtkit.runtime.decoder.runtime_cache import context_with_cache, save_cache
from trtkit.runtime.layer_profiler import layer_profiler

if TYPE_CHECKING:
    from trtkit.backends import Backend
    from trtkit.bundle.bundle import Bundle
    from trtkit.network.input_spec import InputSpec
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

    def close(self) -> None:
        """Keep what was compiled for this GPU for the next start, and give the memory back."""
        save_cache(self._runtime_cache, self._bundle)
        self._graphs.clear()
        self.cache.close()

    def _allocate(self, slots: int) -> None:
        """Make the device buffers: one for each small input, each cache and the logits."""
        specs = [record.spec for record in self._bundle.manifest.stages[-1].inputs]
        tokens = max(slots * self.max_prefill_length, slots)
        self.cache = KvCache(specs, slots, _dtype, self._stream)
        self._new = self._appended(tokens)
        self._specs = [spec for spec in specs if spec.feeder != "cache"]
        self._inputs = {spec.name: self._buffer(spec, tokens) for spec in self._specs}
        self.vocab_size = int(self._engine.get_tensor_shape("logits")[-1])
        rows = tokens if self.has_all_logits else slots
        self._logits = torch.empty(rows, self.vocab_size, dtype=torch.float32, device="cuda")

    def _copy_inputs(self, call: Call) -> None:
        """Copy a call's inputs to the device."""
        for name, value in self._feed(call).items():
            self._inputs[name][: value.numel()].copy_(value.reshape(-1), non_blocking=True)

    def _appended(self, tokens: int) -> dict[str, torch.Tensor]:
        """Return room for the new keys and values that engines with caches in eight bits give; for others none."""
        eight_bits = [spec for spec in self.cache.specs if _dtype(spec).itemsize == 1]
        sizes = {spec.name: spec.size_of("key_value_heads") * spec.size_of("head_dim") for spec in eight_bits}
        return {
            spec.name: torch.zeros(tokens * sizes[spec.name], dtype=_dtype(spec), device="cuda") for spec in eight_bits
        }

    def _feed(self, call: Call) -> dict[str, torch.Tensor]:
        """Return the inputs of a call but its caches, on the host."""
        feed = {name: torch.from_numpy(value) for name, value in call.feed().items() if name in self._inputs}
        if "rope_position_ids" in self._inputs:
            feed["rope_position_ids"] = torch.from_numpy(call.rope_position_ids())
        if self._embeddings is not None:
            feed["inputs_embeds"] = self._embeddings.inputs(call)
        return feed

    def _buffer(self, spec: InputSpec, tokens: int) -> torch.Tensor:
        """Return room for an input of up to `tokens` tokens."""
        static = math.prod(size for size in spec.shape if size > 0)
        return torch.zeros(tokens * static, dtype=_dtype(spec), device="cuda")

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
        for spec in self._specs:
            context.set_input_shape(spec.name, spec.shape_at({"batch": rows, "new_tokens": size}))
            context.set_tensor_address(spec.name, self._inputs[spec.name].data_ptr())
        caches = self.cache.view(slice(first, first + rows))
        for spec in self.cache.specs:
            cache = caches[spec.name]
            context.set_input_shape(spec.name, tuple(cache.shape))
            context.set_tensor_address(spec.name, cache.data_ptr())
            context.set_tensor_address(spec.updated, self._new.get(spec.name, cache).data_ptr())
        context.set_tensor_address("logits", self._logits.data_ptr())
        if not context.execute_async_v3(self._stream.cuda_stream):
            raise GenerationError("TensorRT could not run the engine", fix="its log says why")
        if self._new:
            self._append(first, rows, size)

    def _append(self, first: int, rows: int, size: int) -> None:
        """Write new keys and values behind those of each slot."""
        shapes = {
            spec.name: (rows, spec.size_of("key_value_heads"), size, spec.size_of("head_dim"))
            for spec in self.cache.specs
        }
        new = {name: self._new[name][: math.prod(shape)].view(shape) for name, shape in shapes.items()}
        self.cache.append(first, self._inputs["write_indices"][:rows].long(), new)


def _dtype(spec: InputSpec) -> torch.dtype:
    """Return the type of an input in torch."""
    dtype: torch.dtype = getattr(torch, DTYPES[spec.dtype].torch)
    return dtype
