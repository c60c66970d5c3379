"""Requests to a real tritonserver name a deployment's LoRA adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from transformers import LlamaForCausalLM

from tests.support import tiny_llm
from tests.support.adapters import greedy_tokens, save_adapter
from tests.support.served_llm import answers, generate
from tests.support.triton import serving
from trtkit.builder.build import build_bundle
from trtkit.cli.main import main
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

PROMPT, COUNT = "the quick brown fox", 6


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    tiny_llm.save(tmp_path / "hf")
    sizes = "max_batch_size: 4, max_sequence_length: 64, max_prefill_length: 16, lora: {max_rank_sum: 8}"
    (tmp_path / "m.yaml").write_text(f"source: {{hf: hf}}\nprecision: fp32\nllm: {{{sizes}}}\n")
    return build_bundle(load_config(str(tmp_path / "m.yaml")), tmp_path / "bundle", new_runner()).bundle.path


@pytest.mark.slow
def test_requests_name_adapters(bundle: Path, tmp_path: Path) -> None:
    hf, ids = LlamaForCausalLM.from_pretrained(tmp_path / "hf").eval(), tiny_llm.tokenizer()(PROMPT).input_ids
    folders = {
        f"a{rank}": save_adapter(tmp_path / f"a{rank}", hf, rank, r=rank, target_modules="all-linear")
        for rank in (3, 5)
    }
    words = [f"--set=llm.lora.{name}={folder}" for name, folder in folders.items()]
    main(["deploy", str(bundle), "--repository", str(tmp_path / "models"), "--name", "chat", *words, "-q"])
    with serving(tmp_path / "models") as served:
        for name in ("", *folders, *folders):
            (answer,) = answers(served, "chat", text_input=PROMPT, max_tokens=COUNT, ignore_eos=True, lora_name=name)
            assert answer["output_ids"].reshape(-1).tolist() == greedy_tokens(hf, folders.get(name), ids, COUNT)
        status, refused = generate(served, "chat", text_input=PROMPT, lora_name="fr")
        assert status == 400
        assert "lora_name: no adapter `fr` is loaded" in refused["error"]


def test_adapters_of_a_deployment_are_checked(bundle: Path, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    words = ("deploy", bundle, "--repository", tmp_path / "models")
    ran = trtkit(*words, "--set", f"llm.lora.fr={tmp_path}/nowhere")
    assert (ran.code, "no such folder" in ran.err) == (1, True)
