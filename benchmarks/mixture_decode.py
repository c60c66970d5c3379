"""Decode steps of a mixture of experts that read only the selected experts, against steps that read all.

Times are those of the reference executor on a CPU; bytes are `trtkit plan`'s for the same network.
`python -m benchmarks.mixture_decode`
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import interleaved, ratio, seconds, summary, write
from trtkit.backends import load_backend
from trtkit.config.llm import LlmOptions
from trtkit.config.schema import ModelConfig, Source
from trtkit.dtypes import FP32
from trtkit.jobs.job import JobContext
from trtkit.llm.execution import Call, DecoderNetwork, ReferenceDecoder
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import model_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.planning.count_decoder import count_decoder
from trtkit.planning.jobs import CountRequest

if TYPE_CHECKING:
    from trtkit.planning.counts import NetworkCounts

FIELDS = {
    "model_type": "qwen3_moe",
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "max_position_embeddings": 256,
}
FORMS = ("all", "chosen")
BATCHES = (1, 2, 4, 8, 16, 32)
LENGTH, REPEATS = 64, 7


def decoder(form: str) -> ReferenceDecoder:
    """Return the model with random weights."""
    backend, spec, generator = load_backend("tensorrt_rtx"), decoder_spec(FIELDS), np.random.default_rng(0)
    arrays = {
        weight.path: generator.standard_normal(weight.shape, np.float32) * np.float32(weight.shape[-1] ** -0.5)
        for weight in model_weights(spec)
    }
    graph = Graph(backend)
    build_decoder(graph, spec, arrays, DecoderOptions(FP32, LENGTH, experts="chosen" if form == "chosen" else "all"))
    sizes = spec.vocab_size, LENGTH, LENGTH // 2
    return ReferenceDecoder(DecoderNetwork(graph.layers(), graph.inputs, *sizes, has_all_logits=False), max(BATCHES))


def step(reference: ReferenceDecoder, batch: int) -> None:
    """Run one token in each of `batch` slots, a different one per slot."""
    ids = (np.arange(batch) * 37 % FIELDS["vocab_size"])[:, None]  # type: ignore[operator]
    reference.forward(Call(0, ids, np.full(batch, LENGTH // 2), np.ones(batch, np.int64)))


def counts(form: str) -> NetworkCounts:
    """Return the network's counts as `trtkit plan` has them."""
    options = LlmOptions(experts=form)
    config = ModelConfig(name="mixture", source=Source(hf="/nowhere"), precision="fp32", llm=options)
    return count_decoder(CountRequest("tensorrt_rtx", config, FIELDS, "config.json", LENGTH), JobContext())


def main() -> None:
    """Measure and write the results."""
    torch.set_num_threads(1)
    decoders, counted = {form: decoder(form) for form in FORMS}, {form: counts(form) for form in FORMS}
    rows: dict[str, Any] = {}
    for batch in BATCHES:
        samples = interleaved(
            {form: partial(seconds, partial(step, decoders[form], batch)) for form in FORMS}, repeats=REPEATS, warmups=2
        )
        point = (batch, 1, LENGTH)
        moved = {form: counted[form].of_step(point).fused_bytes.at(point) for form in FORMS}
        rows[str(batch)] = {
            "step_s": {form: summary(samples[form]) for form in FORMS},
            "chosen_to_all": ratio(samples["chosen"], samples["all"]),
            "planned_bytes": moved,
            "planned_chosen_to_all": round(moved["chosen"] / moved["all"], 3),
        }
        print(batch, rows[str(batch)]["chosen_to_all"], rows[str(batch)]["planned_chosen_to_all"])
    write("mixture_decode", {"model": FIELDS, "threads": 1, "batches": rows})


if __name__ == "__main__":
    main()
