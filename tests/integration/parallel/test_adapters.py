"""Ranks that share a model share its adapters: each holds its part of the matrices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.integration.test_lora import IDS, logits_of, opened_of, targets_of
from tests.support import tiny_llm
from tests.support.adapters import greedy_tokens, peft_logits, save_adapter
from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of, relative_rms, rtx
from tests.support.tiny_llm import PROMPTS
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.builder.decoders import checked_spec
from trtkit.config.llm import LoraOptions, ParallelOptions
from trtkit.config.load import load_config
from trtkit.dtypes import FP32
from trtkit.errors import ConfigError
from trtkit.jobs.runner import new_runner
from trtkit.llm.adapters import prepared_matrices
from trtkit.llm.execution import ReferenceDecoder, decoder_network
from trtkit.lora.adapter import open_adapter
from trtkit.lora.targets import adapter_bytes
from trtkit.models.parallel import Grid, rank_spec
from trtkit.models.rank_weights import RankWeights
from trtkit.reference import ThreadGroup

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case

# Separate, joined, grouped and interleaved projections, biases, recurrent groups.
SHARED = ("llama", "phi3", "falcon-40b", "codegen", "qwen2", "bamba")
# With layers that read all tokens, and with some between blocks, which read a rank's share of them.
SEQUENCED = ("llama", "gemma3n", "gemma4", "qwen2_moe")
# Whose heads are gathered after the adapters: a few, all, and interleaved ones.
IN_CONTEXT = ("llama", "falcon-40b", "codegen", "qwen2")
ADAPTED = [(case, ParallelOptions(tensor=2)) for case in CASES if case.name in SHARED]
ADAPTED += [(case, ParallelOptions(tensor=2, sequence=True)) for case in CASES if case.name in SEQUENCED]
ADAPTED += [(case, ParallelOptions(tensor=2, context=2)) for case in CASES if case.name in IN_CONTEXT]


@pytest.mark.parametrize(("case", "parallel"), ADAPTED, ids=str)
def test_ranks_compute_adapters_as_one_does(case: Case, parallel: ParallelOptions, tmp_path: Path) -> None:
    whole = opened_of(case, tmp_path)
    config = whole.config.model_copy(update={"parallel": parallel})
    adapter = save_adapter(tmp_path / "adapter", model_of(case).hf, r=5, target_modules=targets_of(whole))
    matrices, group, ranks = prepared_matrices(open_adapter(adapter, whole.spec), torch.float32), ThreadGroup(2), []
    for number in range(2):
        opened = replace(whole, model=replace(whole.model, config=config), rank=number)
        decoder = ReferenceDecoder(decoder_network(rtx(), opened), 3, ranks=group.member(number))
        assert decoder.adapters is not None
        decoder.adapters.share_of = RankWeights(opened.spec, opened.rank_spec, {}).share_of
        decoder.adapters.write([4, 1, 2, 9, 7], 1, matrices)
        ranks.append(decoder)
    ids, rows = IDS[:3], np.array([1, 0, 1])
    with ThreadPoolExecutor(2) as pool:
        logits = list(pool.map(lambda decoder: logits_of(decoder, ids, rows), ranks))
    adapted, plain = (
        peft_logits(model_of(case).hf, adapter, torch.from_numpy(ids)),
        model_of(case).logits(torch.from_numpy(ids)),
    )
    want = torch.where(torch.from_numpy(rows)[:, None, None] == 1, adapted, plain)
    assert [error for got in logits if (error := relative_rms(got, want)) > 2e-5] == []


def test_every_pipeline_stage_has_a_layer_that_takes_adapters(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "bamba")  # whose first layer has no attention
    options: dict[str, Any] = {"lora": {"max_rank_sum": 4, "targets": ["q_proj"]}}
    whole = opened_of(case, tmp_path, **options)
    with pytest.raises(ConfigError, match="stage 0 of 2 has no layer that takes adapters"):
        checked_spec(whole.config.model_copy(update={"parallel": ParallelOptions(pipeline=2)}), whole.source)
    lora, first = LoraOptions(**options["lora"]), rank_spec(whole.spec, Grid(pipeline=2), 0)
    assert adapter_bytes(whole.spec, lora, FP32, first) == 4 * 4  # whose each rank is
    assert adapter_bytes(whole.spec, lora, FP32) > 4 * 4


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["tensor: 2", "pipeline: 2"])
def test_processes_take_adapters_from_rank_0(grid: str, tmp_path: Path) -> None:
    tiny_llm.save(tmp_path / "hf")
    hf = LlamaForCausalLM.from_pretrained(tmp_path / "hf").eval()
    targets = [["q_proj", "down_proj"], ["k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"]]
    lora = {
        f"a{rank}": save_adapter(tmp_path / f"a{rank}", hf, rank, r=rank, target_modules=targets[rank % 2])
        for rank in (5, 6)
    }
    sizes = "max_batch_size: 2, max_sequence_length: 64, max_prefill_length: 16, lora: {max_rank_sum: 8}"
    (tmp_path / "m.yaml").write_text(f"source: {{hf: hf}}\nprecision: fp32\nllm: {{{sizes}}}\nparallel: {{{grid}}}\n")
    bundle = build_bundle(load_config(str(tmp_path / "m.yaml")), tmp_path / "bundle", new_runner()).bundle
    names = ["a5", "a6", None, "a5"]  # both do not fit at once
    params = [SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, adapter=name) for name in names]
    with LLM(bundle, runtime="reference", lora=lora) as llm:
        outputs = llm.generate(PROMPTS, params)
    for prompt, name, output in zip(PROMPTS, names, outputs, strict=True):
        ids = tiny_llm.tokenizer()(prompt).input_ids
        want = greedy_tokens(hf, None if name is None else lora[name], ids, 6)
        assert list(output.outputs[0].token_ids) == want
