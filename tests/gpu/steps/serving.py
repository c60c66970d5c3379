"""Serving with scarce memory, adapters and two ranks: tokens equal the reference executor's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tests.gpu.language import TINY, weights_folder
from tests.gpu.rank import PROMPTS, STEPS
from tests.support.engine_decoders import greedy
from trtkit import LLM, SamplingParams
from trtkit.config.schema import ModelConfig
from trtkit.llm.execution import open_execution
from trtkit.llm.execution.cache_size import bytes_of_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gpu.place import Place
    from tests.gpu.step import Answer
    from trtkit.bundle.bundle import Bundle

PAGES = 6
"""Pages of 16 tokens: too few for four sequences of 40 tokens."""
RANK = 4
_PROMPTS = [[5 + slot, *range(7, 30)] for slot in range(4)]
_GREEDY = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}


def ask(place: Place) -> Iterator[Answer]:
    """Test each; after one that fails, the others are still tried."""
    for what, question in {
        "preemption": preempted,
        "host memory": kept_on_the_host,
        "adapters": adapted,
        "two ranks": of_two_ranks,
    }.items():
        try:
            yield {"what": what, **question(place)}
        except Exception as error:
            yield {"what": what, "holds": False, "error": f"{type(error).__name__}: {error}"}


def preempted(place: Place) -> Answer:
    """Run four sequences with too few pages: some are preempted and recomputed."""
    answer = _with_few_pages(place, host_cache_gib=0)
    return answer | {"holds": bool(answer["holds"] and answer["preemptions"] and not answer["swaps"])}


def kept_on_the_host(place: Place) -> Answer:
    """The same with host memory: pages are swapped out and in."""
    answer = _with_few_pages(place, host_cache_gib=0.05)
    return answer | {"holds": bool(answer["holds"] and answer["swaps"])}


def adapted(place: Place) -> Answer:
    """Mix requests with either of two adapters, and with none."""
    lora = {"max_rank_sum": 2 * RANK}
    bundle = _bundle(place, "adapters", {"lora": lora})
    folders = {name: _adapter(place, name, seed) for seed, name in enumerate(("first", "second"))}
    params = [SamplingParams(**_GREEDY, adapter=name) for name in ("first", "second", None, "first")]
    tokens, expected = (_tokens(bundle, params, runtime, lora=folders)[0] for runtime in ("tensorrt", "reference"))
    return {"holds": tokens == expected and len({tuple(each) for each in tokens}) > 1}


def of_two_ranks(place: Place) -> Answer:
    """Run a tensor parallel decoder as two processes; on one GPU, their collectives go through the host."""
    if not place.is_simulated and torch.cuda.device_count() < 2:
        return {"seen": "there is one GPU: not asked"}
    bundle = _bundle(place, "two-ranks", {}, parallel={"tensor": 2})
    words = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.gpu.rank", str(bundle.path)]
    words += ["--simulated"] * place.is_simulated + ["--on-host"] * (not place.has_gpu)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return {"holds": False, "error": done.stderr[-600:]}
    one = _bundle(place, "one-rank", {})
    expected = np.array(greedy(open_execution(one, "reference"), PROMPTS, STEPS)[0]).tolist()
    return {"holds": json.loads(done.stdout.splitlines()[-1]) == expected}


def _with_few_pages(place: Place, host_cache_gib: float) -> Answer:
    bundle = _bundle(place, "paged", {"kv": "paged", "page_tokens": 16})
    specs = [record.spec for record in bundle.manifest.stages[-1].inputs]
    few = {"cache_gib": PAGES * bytes_of_page(specs) / 2**30, "host_cache_gib": host_cache_gib}
    params = [SamplingParams(**_GREEDY)] * len(_PROMPTS)
    tokens, counts = _tokens(bundle, params, "tensorrt", **few)
    return {"holds": tokens == _tokens(bundle, params, "reference")[0], **counts}


def _tokens(
    bundle: Bundle, params: list[SamplingParams], runtime: str, **options: Any
) -> tuple[list[tuple[int, ...]], dict[str, int]]:
    """Answer all prompts together; return their tokens and the engine's counts of preemptions."""
    with LLM(bundle, runtime=runtime, **options) as llm:
        tokens = [output.outputs[0].token_ids for output in llm.generate(_PROMPTS, params)]
        statistics = llm.statistics
    return tokens, {"preemptions": statistics.preemptions, "swaps": statistics.swaps}


def _bundle(place: Place, name: str, options: dict[str, Any], **fields: Any) -> Bundle:
    """Return a decoder with four slots of 64 tokens, in fp32, so that the order of sums changes no token."""

    def config() -> ModelConfig:
        sizes = {"max_batch_size": 4, "max_sequence_length": 64, "max_prefill_length": 32, **options}
        source = {"hf": str(weights_folder(place, TINY, "fp32"))}
        return ModelConfig.model_validate({"source": source, "precision": "fp32", "llm": sizes, **fields})

    return place.bundle(f"serving-{name}", config)


def _adapter(place: Place, name: str, seed: int) -> Path:
    """Return a random adapter of the query projections, as PEFT saves it."""
    from safetensors.torch import save_file

    folder, random = place.scratch / "adapters" / name, torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    paths = [f"base_model.model.model.layers.{layer}.self_attn.q_proj" for layer in range(TINY.layers)]
    sizes = {"lora_A": (RANK, TINY.hidden), "lora_B": (TINY.hidden, RANK)}
    tensors = {
        f"{path}.{part}.weight": 0.3 * torch.randn(size, generator=random)
        for path in paths
        for part, size in sizes.items()
    }
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    return folder
