"""Context parallel ranks against tensor parallel ones: errors, caches, steps, plan sizes, and `trtkit plan`.

A Llama with 4 layers, 16 query and 2 key/value heads of 64, with random weights in fp32 on the reference executor.
Ranks are threads that take turns on this machine, so a step's time is that of all ranks together. Errors are those of
logits against a single rank's, after a prompt and while decoding. Rank 0's plan is built with TensorRT-RTX in fp16.
`python -m benchmarks.context_parallel` takes a few minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import seconds, summary, write
from trtkit.backends import load_backend
from trtkit.builder.decoders import decoder_profiles, llm_options, open_decoder
from trtkit.config.load import load_config
from trtkit.llm.execution import Call, ReferenceDecoder, decoder_network
from trtkit.llm.execution.packed import PackedCall
from trtkit.models.parallel import grid_of
from trtkit.network.graph import Graph
from trtkit.reference import ThreadGroup
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from trtkit.builder.decoders import OpenedDecoder

CHUNK, LENGTHS, REPEATS, RANKS = 128, (1024, 4096, 8192), 5, 4
GRIDS = {"one rank": "null", "tensor": f"{{tensor: {RANKS}}}", "context": f"{{tensor: {RANKS}, context: {RANKS}}}"}
CACHES = {"linear": ["llm.kv=linear"], "paged": ["llm.kv=paged", "llm.page_tokens=64"]}
PLANS = (("llama-3.1-70b", 8, 1), ("llama-3.1-70b", 8, 8), ("llama-3.1-70b", 16, 8), ("deepseek-v3", 8, 8))
"""Published models, numbers of GPUs, and concurrent sequences."""


def save_model(folder: Path) -> None:
    """Write a Hugging Face folder with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=2,
        vocab_size=1024,
        max_position_embeddings=max(LENGTHS) + CHUNK,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def opened_model(folder: Path, grid: str, caches: list[str], precision: str) -> OpenedDecoder:
    """Return the model on a grid."""
    length = max(LENGTHS) + CHUNK
    sizes = ["llm.max_batch_size=1", f"llm.max_sequence_length={length}", f"llm.max_prefill_length={CHUNK}"]
    (folder / "model.yaml").write_text(f"source: {{hf: {folder}}}\n")
    overrides = [f"precision={precision}", f"parallel={GRIDS[grid]}", *sizes, *caches]
    return open_decoder(resolve(load_config(str(folder / "model.yaml"), overrides)))


class Decoders:
    """All ranks of a grid, as threads."""

    def __init__(self, opened: OpenedDecoder) -> None:
        grid, backend = grid_of(opened.config), load_backend("tensorrt_rtx")
        group = ThreadGroup(grid.ranks)
        self.ranks = [
            ReferenceDecoder(
                decoder_network(backend, replace(opened, rank=rank)),
                1,
                ranks=group.member(rank) if grid.ranks > 1 else None,
            )
            for rank in range(grid.ranks)
        ]

    def logits(self, ids: np.ndarray, start: int) -> torch.Tensor:
        """Compute tokens after `start` cached ones; return the last one's logits, which are equal on all ranks."""
        call = Call(0, ids[None], np.array([start]), np.array([len(ids)]))
        packed = PackedCall.of(call, has_all_logits=False)
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            outputs: list[torch.Tensor] = list(pool.map(lambda rank: rank.forward_packed(packed), self.ranks))
        assert all(torch.equal(each, outputs[0]) for each in outputs)
        return outputs[0].clone()

    @property
    def cache_bytes(self) -> list[int]:
        """Bytes of each rank's caches."""
        return [sum(array.nbytes for array in rank.cache.view(slice(0, 1)).values()) for rank in self.ranks]


def measured(folder: Path, caches: list[str]) -> dict[str, Any]:
    """Return each grid's figures for one sequence: errors, cache sizes, and decode steps at several lengths."""
    decoders = {grid: Decoders(opened_model(folder, grid, caches, "fp32")) for grid in GRIDS}
    ids = np.random.default_rng(0).integers(3, 1000, max(LENGTHS) + CHUNK)
    errors: dict[str, list[float]] = {grid: [] for grid in GRIDS}
    steps: dict[str, dict[str, Any]] = {grid: {} for grid in GRIDS}
    start = 0
    for length in LENGTHS:
        while start < length:
            count = min(CHUNK, length - start)
            logits = {grid: each.logits(ids[start : start + count], start) for grid, each in decoders.items()}
            start += count
        for _ in range(3):
            logits |= {grid: each.logits(ids[start : start + 1], start) for grid, each in decoders.items()}
            for grid, one in logits.items():
                errors[grid].append(float((one - logits["one rank"]).norm() / logits["one rank"].norm()))
            start += 1
        for grid, each in decoders.items():
            step = partial(each.logits, ids[start - 1 : start], start - 1)
            steps[grid][str(length)] = summary([seconds(step) for _ in range(REPEATS)])
    return {
        grid: {"largest_error": max(errors[grid]), "cache_bytes": each.cache_bytes, "decode_s": steps[grid]}
        for grid, each in decoders.items()
    }


def plan_bytes(folder: Path, grid: str, caches: list[str]) -> int:
    """Return the size of rank 0's plan in fp16."""
    opened = opened_model(folder, grid, caches, "fp16")
    graph = Graph(load_backend("tensorrt_rtx"))
    opened.write(graph, opened.weights())
    config = graph.builder.create_builder_config()
    for shapes in decoder_profiles(graph.inputs, llm_options(opened.config)):
        profile = graph.builder.create_optimization_profile()
        for tensor, sizes in shapes.items():
            profile.set_shape(tensor, sizes.min, sizes.opt, sizes.max)
        config.add_optimization_profile(profile)
    plan = graph.builder.build_serialized_network(graph.network, config)
    assert plan is not None
    return int(plan.nbytes)


def planned(name: str, gpus: int, batch: int) -> dict[str, Any]:
    """Return the result of `trtkit plan` for a published model at 131,072 tokens on H100s."""
    words = [name, "--gpu", "h100", "--input-len", "130944", "--output-len", "128", "--concurrency", str(batch)]
    grid = ["--set", f"parallel={{tensor: {gpus}, context: {gpus}}}"]
    command = [sys.executable, "-m", "trtkit", "plan", *words, *grid, "--json"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    (gpu,) = json.loads(answer.stdout)["gpus"]
    shared = next(each for each in gpu["grids"] if each["context"])
    without = next(
        each for each in gpu["grids"] if (each["tensor"], each["pipeline"], each["context"]) == (gpus, 1, None)
    )
    batches = {"largest_batch": shared["largest_batch"], "largest_batch_without": without["largest_batch"]}
    return {"model": name, "gpus": gpus, "batch": batch, **shared["context"], **batches}


def main() -> None:
    """Measure, and write the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder)
        figures = {kind: measured(folder, caches) for kind, caches in CACHES.items()}
        plans = {kind: {grid: plan_bytes(folder, grid, caches) for grid in GRIDS} for kind, caches in CACHES.items()}
    rows = [planned(*row) for row in PLANS]
    print(write("context_parallel", {"executor": figures, "plan_bytes": plans, "plan": rows}))


if __name__ == "__main__":
    main()
