"""OpenAI's client names LoRA adapters as models; they are loaded and unloaded while a worker serves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from openai import NotFoundError
from transformers import LlamaForCausalLM

from tests.support import tiny_llm
from tests.support.adapters import greedy_tokens, save_adapter
from tests.support.dynamo import MODEL, OK, serving, wait_until
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

PROMPT = "the quick brown fox jumps over the lazy dog, and says"
COUNT = 6


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["linear", "paged"])
def test_adapters_are_models_of_the_api(kv: str, tmp_path: Path) -> None:
    tiny_llm.save(tmp_path / "hf")
    hf = LlamaForCausalLM.from_pretrained(tmp_path / "hf").eval()
    folders = {
        f"a{rank}": save_adapter(tmp_path / f"a{rank}", hf, rank, r=rank, target_modules="all-linear")
        for rank in (3, 5, 6)
    }
    sizes = f"max_batch_size: 4, max_sequence_length: 64, max_prefill_length: 16, kv: {kv}, lora: {{max_rank_sum: 8}}"
    (tmp_path / "m.yaml").write_text(f"source: {{hf: hf}}\nprecision: fp32\nllm: {{{sizes}}}\n")
    bundle = build_bundle(load_config(str(tmp_path / "m.yaml")), tmp_path / "bundle", new_runner()).bundle.path
    tokenizer = tiny_llm.tokenizer()

    def wanted(name: str) -> str:
        ids = tokenizer(PROMPT).input_ids
        text: str = tokenizer.decode(greedy_tokens(hf, folders.get(name), ids, COUNT), skip_special_tokens=True)
        return text

    with serving(bundle, lora={name: str(folders[name]) for name in ("a3", "a5")}) as served:
        client = served.client()

        def answer(name: str) -> str:
            options: Any = {"max_tokens": COUNT, "temperature": 0, "extra_body": {"ignore_eos": True}}
            return client.completions.create(model=name, prompt=PROMPT, **options).choices[0].text

        def models() -> set[str]:
            return {model.id for model in client.models.list()}

        wait_until(lambda: models() == {MODEL, "a3", "a5"})
        names = [MODEL, "a3", "a5"] * 3
        with ThreadPoolExecutor(len(names)) as pool:
            assert list(pool.map(answer, names)) == list(map(wanted, names))
        assert len({wanted(name) for name in names}) == 3
        assert served.update(0, "load_lora", lora_name="a6", source={"uri": folders["a6"].as_uri()}) == OK
        wait_until(lambda: "a6" in models())
        assert answer("a6") == wanted("a6")
        assert served.update(0, "unload_lora", lora_name="a3") == OK
        wait_until(lambda: models() == {MODEL, "a5", "a6"})
        with pytest.raises(NotFoundError):
            answer("a3")
        for name, message in (
            ("a7", "load_lora: `source.uri` is not the path of a folder"),
            (MODEL, f"adapter: `{MODEL}` is the name of the model"),
            ("../a6", "adapter: '../a6' cannot be an adapter's name"),
            ("a\x1b[2J\n", "x1b[2J\\\\n' cannot be an adapter's name"),
        ):
            assert message in served.update(0, "load_lora", lora_name=name, source={"uri": "s3://adapters/a7"})
        missing = served.update(0, "unload_lora", lora_name="a3")
        assert "adapter: no adapter `a3` is loaded (loaded: `a5`, `a6`)" in missing
        assert "is the name of the model" in served.update(0, "unload_lora", lora_name=MODEL)
        assert [answer(name) for name in (MODEL, "a5")] == [wanted(MODEL), wanted("a5")]


def test_adapters_are_checked_before_anything_starts(tiny_bundle: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("serve", tiny_bundle, "--lora", "fr=adapters/fr", "--http-port", 0)
    assert (ran.code, ran.out) == (2, "")
    assert "--lora: the engine takes no LoRA adapters" in ran.err
    assert "build with `--set llm.lora.max_rank_sum=64`" in ran.err
