"""Runs decoders in transformers and on the reference executor with the same random weights."""

from __future__ import annotations

import json
import math
import re
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from trtkit.backends import Backend, load_backend
from trtkit.builder.decoders import decoder_profiles
from trtkit.config.llm import LlmOptions, LoraOptions
from trtkit.dtypes import DTYPES, FP32, DType
from trtkit.llm.execution.cache_size import page_tokens_of
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.network.input_spec import takes_packed_calls
from trtkit.network.layer_file import LayerFiles, load_layers, save_layers
from trtkit.reference import Executor, Options
from trtkit.sources.huggingface import auto_classes
from trtkit.sources.huggingface.stacked_experts import unstack_experts
from trtkit.sources.safetensors_file import read_folder
from trtkit.verification.bundle_networks import first_difference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.decoder_case import Case
    from trtkit.llm.execution import DecoderNetwork
    from trtkit.models.spec import DecoderSpec
    from trtkit.network.layer_graph import LayerGraph
    from trtkit.reference.ranks import Rank

T = 32
"""Length of the caches."""
BUFFERS = ("e_score_correction_bias", "layer_scalar")
"""Checkpoint weights that modules hold as buffers."""
transformers_logging.disable_progress_bar()
torch.set_num_threads(1)
auto_classes.register()


@dataclass(frozen=True, eq=False)
class Model:
    """A transformers model, with its config.json and its checkpoint as they are saved."""

    hf: Any
    config: dict[str, Any]
    checkpoint: dict[str, torch.Tensor]

    @property
    def spec(self) -> DecoderSpec:
        return decoder_spec(self.config)

    def logits(self, ids: torch.Tensor, dtype: DType = FP32) -> torch.Tensor:
        """Return fp32 logits [B, S, V], computed with weights rounded to `dtype`."""
        rounded = {name: value.to(getattr(torch, dtype.torch)).float() for name, value in self.hf.state_dict().items()}
        with torch.inference_mode():
            return torch.func.functional_call(self.hf, rounded, (ids.long(),), tie_weights=False).logits


@cache
def model_of(case: Case) -> Model:
    """Return the case's model with all weights random, norms and biases included."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(case.model_type, **deepcopy(case.config))  # some configs modify their arguments
    hf = AutoModelForCausalLM.from_config(
        config, attn_implementation=case.attention, experts_implementation="eager"
    ).eval()
    buffers = [(name, each) for name, each in hf.named_buffers() if name.endswith(BUFFERS)]
    for name, weight in [*hf.named_parameters(), *buffers]:
        is_matrix = weight.dim() > 1
        deviation = 1.5 * weight.shape[-1] ** -0.5 if is_matrix else 0.3
        center = 1.0 if "norm" in name.lower() or "scal" in name or "ln_" in name or ".ln" in name else 0.0
        torch.nn.init.normal_(weight, 0.0 if is_matrix or name.endswith("bias") else center, deviation)
    with TemporaryDirectory() as folder:
        hf.save_pretrained(folder)
        saved = json.loads(Path(f"{folder}/config.json").read_text())
        arrays = unstack_experts(read_folder(Path(folder))[0], saved["model_type"])
        checkpoint = {name: torch.from_numpy(np.array(array.read())) for name, array in arrays.items()}
    return Model(hf, saved, checkpoint)


@cache
def rtx() -> Backend:
    return load_backend("tensorrt_rtx")


def graph_of(model: Model, options: DecoderOptions) -> Graph:
    """Return the model's network."""
    graph = Graph(rtx())
    build_decoder(graph, model.spec, find_weights(model.spec, model.checkpoint), options)
    return graph


@cache
def executor_of(case: Case, dtype: DType) -> Runner:
    """Return a runner of the case's network, with logits of all tokens."""
    return Runner(graph_of(model_of(case), DecoderOptions(dtype, T, has_all_logits=True)))


def through_a_file(layers: LayerGraph) -> LayerGraph:
    """Return a network's layers as a bundle stores them: written to a file and read back, equal as data.

    Equal data on one executor gives equal bits, so tests of these layers hold for the written network.
    """
    with TemporaryDirectory() as folder:
        files = LayerFiles(Path(folder) / "m.layers.json", ())
        save_layers(layers, files)
        read = load_layers(files)[0]
        assert first_difference(read, layers) is None
        return read


def read_network(network: DecoderNetwork) -> DecoderNetwork:
    """Return a language model's network with its layers read back from a file."""
    return replace(network, layers=through_a_file(network.layers))


class Runner:
    """A network, read back from a file of its layers, with caches for some slots.

    rank: this rank in its group, if several ranks share the model.
    """

    def __init__(self, graph: Graph, rank: Rank | None = None) -> None:
        self.backend, self.inputs = graph.backend, graph.inputs
        self._executor = Executor(through_a_file(graph.layers()), Options(ranks=rank))
        self.reset(1)

    def reset(self, slots: int, readable: int = 1 << 20) -> None:
        """Empty the caches. Entries without tokens are set to large numbers, so that reading them shows.

        readable: how many entries per slot may be read at all; the others are NaN, which shows even if masked.
        """
        specs = [spec for spec in self.inputs if spec.is_kept]
        self._cache = {
            spec.name.removeprefix("past_"): torch.full(
                spec.shape_at({"batch": slots}), 100.0, dtype=getattr(torch, DTYPES[spec.dtype].torch)
            )
            for spec in specs
        }
        for spec in specs:
            array = self._cache[spec.name.removeprefix("past_")]
            if spec.feeder == "cache":
                array[:, :, readable:] = math.nan
            else:
                array[:] = math.nan  # a new sequence must not read its state
        self.lengths = [0] * slots

    def step(
        self, ids: torch.Tensor, counts: list[int] | None = None, on_tensor: Any = None, **more: Any
    ) -> dict[str, torch.Tensor]:
        """Run ids [B, S] in the slots. counts: how many of each slot's ids are tokens; the rest is padding."""
        size = ids.shape[1]
        first = torch.tensor(self.lengths, dtype=torch.int32)
        counts = counts or [size] * len(ids)
        self.lengths = [old + new for old, new in zip(self.lengths, counts, strict=True)]
        feed = {
            "input_ids": ids.to(torch.int32),
            "position_ids": first[:, None] + torch.arange(size, dtype=torch.int32),
            "write_indices": first,
            "kv_lengths": torch.tensor(self.lengths, dtype=torch.int32),
            "token_counts": torch.tensor(counts, dtype=torch.int32),
            **{f"past_{name}": value for name, value in self._cache.items()},
            **more,
        }
        feed = {name: value for name, value in feed.items() if name in {spec.name for spec in self._executor.inputs}}
        outputs = self._executor.run(feed, on_tensor=on_tensor)
        self._cache = {name: outputs[f"present_{name}"] for name in self._cache}
        return outputs

    def read_bytes(self, ids: torch.Tensor, pattern: str) -> int:
        """Return the bytes of all tensors of a step whose names match `pattern` at the end."""
        sizes: list[int] = []

        def measure(name: str, value: torch.Tensor) -> None:
            sizes.extend([value.nbytes] if re.search(pattern, name) else [])

        self.step(ids, on_tensor=measure)
        return sum(sizes)


def builds(graph: Graph, capabilities: Sequence[int] = (), *, has_decode: bool = False) -> bool:
    """Whether TensorRT-RTX builds the network for 1 to 4 slots and up to T new tokens.

    capabilities: compute capabilities to build for; empty for all that it supports.
    has_decode: adds a second profile, for one new token.
    """
    config = graph.builder.create_builder_config()
    for shapes in _profiles(graph)[: 1 + has_decode]:
        profile = graph.builder.create_optimization_profile()
        for name, each in shapes.items():
            profile.set_shape(name, *each)
        config.add_optimization_profile(profile)
    config.builder_optimization_level = 0
    if capabilities:
        config.num_compute_capabilities = len(capabilities)
    for index, capability in enumerate(capabilities):
        named = getattr(graph.backend.trt.ComputeCapability, f"SM{capability}")
        config.set_compute_capability(named, index)
    return graph.builder.build_serialized_network(graph.network, config) is not None


def _profiles(graph: Graph) -> list[dict[str, tuple[tuple[int, ...], ...]]]:
    """Return the min, opt and max shape of each input, for prefill and for decode."""
    if takes_packed_calls(graph.inputs):
        has_adapters = any(spec.feeder == "adapter" for spec in graph.inputs)
        lora = LoraOptions(max_rank_sum=24) if has_adapters else None
        options = LlmOptions(max_batch_size=4, max_prefill_length=T, max_sequence_length=T, lora=lora)
        profiles = decoder_profiles(graph.inputs, options)
        return [{name: (each.min, each.opt, each.max) for name, each in shapes.items()} for shapes in profiles]
    profiles = []
    for new_tokens in ((1, 8, T), (1, 1, 1)):
        sizes = zip((1, 2, 4), new_tokens, (1, T // 2, T), strict=True)
        named = [
            {"batch": batch, "new_tokens": new, "kv_window": window, "adapter_rank": 8 * (batch - 1)}
            for batch, new, window in sizes
        ]
        if (page_tokens := page_tokens_of(graph.inputs)) is not None:
            rows = [-(-size["kv_window"] // page_tokens) for size in named]
            named = [
                size | {"row_pages": row, "pages": 8, "kv_window": row * page_tokens}
                for size, row in zip(named, rows, strict=True)
            ]
        profiles.append({spec.name: tuple(spec.shape_at(each) for each in named) for spec in graph.inputs})
    return profiles


def relative_rms(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return ||got - want|| / ||want||; infinite if anything is NaN."""
    error = (torch.linalg.norm((got - want).double()) / torch.linalg.norm(want.double())).item()
    return float("inf") if math.isnan(error) else error
