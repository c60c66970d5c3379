"""Commands and programs of the docs run: here on small models, or in the tests named here."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from transformers import AutoModelForCausalLM

from tests.support import hybrids, tiny_chat
from tests.support.adapters import save_adapter
from tests.support.decoder_case import SIZES, Case
from tests.support.decoders import model_of
from tests.support.docs import DOCS, ROOT, blocks, run_page
from tests.unit.runtime.text.tokenizers import CHATML, byte_level

if TYPE_CHECKING:
    from pathlib import Path


def test_some_test_names_every_page_with_commands() -> None:
    """Pages that are not here have tests of their own, which name them; so does every tutorial."""
    pages = [page for page in DOCS.rglob("*.md") if blocks(page, "bash", "python")]
    tests = "".join(test.read_text(encoding="utf-8") for test in (ROOT / "tests").rglob("test_*.py"))
    alone = [page.name for page in pages if page.parent == DOCS]
    assert len(alone) > 4
    assert [name for name in alone if not re.search(rf"[/\"]{name}\"", tests)] == []
    assert {page.parent.name for page in pages if page.parent != DOCS} == {"tutorials"}
    assert {page.stem for page in (DOCS / "tutorials").iterdir()} == {"vision", "hybrid", "llm", "serving"}


@pytest.mark.slow
def test_commands_on_hybrids_run(tmp_path: Path) -> None:
    hybrids.saved(hybrids.case_of("RTDetrV2ForObjectDetection"), tmp_path / "detector")
    run_page(DOCS / "hybrids.md", tmp_path, {"FOLDER": "detector --set image_size=[64,96] --set precision=fp32"})


@pytest.mark.slow
def test_programs_of_the_python_api_run(tmp_path: Path) -> None:
    """A small Llama stands for the shipped one where it is built."""
    tiny_chat.save_model(tmp_path / "tiny")
    changes = {f'trtkit.{verb}("llama"': f'trtkit.{verb}("tiny"' for verb in ("build", "quantize")}
    run_page(DOCS / "python-api.md", tmp_path, changes)


@pytest.mark.slow
def test_commands_on_language_models_run(tmp_path: Path) -> None:
    """A small Qwen3 stands for the reader's folder, a small Llama for the shipped one."""
    tokenizer = byte_level(chat_template=CHATML)
    sizes = {"vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.eos_token_ids[0]}
    config = {**SIZES, **sizes, "max_position_embeddings": 8192}
    model_of(Case("tiny", "qwen3", config)).hf.save_pretrained(tmp_path / "mine")
    tokenizer.hf.save_pretrained(tmp_path / "mine")
    tiny_chat.save_model(tmp_path / "small")
    (tmp_path / "book.txt").write_text("The quick brown fox jumps over the lazy dog. " * 20, encoding="utf-8")
    small = "--set llm.max_sequence_length=96 --set llm.max_prefill_length=32"
    changes = {"build llama ": f"build llama --set source.hf=small {small} ", "FOLDER": f"mine {small}"}
    run_page(DOCS / "llm.md", tmp_path, changes)


@pytest.mark.slow
def test_programs_on_adapters_run(tmp_path: Path) -> None:
    """A small Llama with random adapters stands for the shipped one; the page's commands are those of other tests."""
    tiny_chat.build(tmp_path, "llm.lora.max_rank_sum=8")
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundle").rename(tmp_path / "bundles/llama")
    hf = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for seed, name in enumerate(("fr", "sql")):
        save_adapter(tmp_path / "adapters" / name, hf, seed)
    run_page(DOCS / "lora.md", tmp_path)


def test_a_decoder_family_is_added_by_the_steps_of_its_page(tmp_path: Path) -> None:
    run_page(DOCS / "add-family.md", tmp_path)


@pytest.mark.slow
def test_commands_on_offload_run(tmp_path: Path) -> None:
    """A small Llama stands for the shipped one."""
    tiny_chat.save_model(tmp_path / "small", num_hidden_layers=4)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hi"}\n{"prompt": "Gravity is"}\n' * 5)
    small = "--set llm.max_sequence_length=96 --set llm.max_prefill_length=32"
    run_page(DOCS / "offload.md", tmp_path, {"build llama ": f"build llama --set source.hf=small {small} "})
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in answers] == list(range(10))


@pytest.mark.slow
def test_commands_on_memory_run(tmp_path: Path) -> None:
    """A small Llama stands for the shipped one."""
    tiny_chat.save_model(tmp_path / "small")
    small = "--set llm.max_sequence_length=96 --set llm.max_prefill_length=32"
    for page in ("memory.md", "memory-weights.md"):
        run_page(DOCS / page, tmp_path, {"build llama ": f"build llama --set source.hf=small {small} "})
