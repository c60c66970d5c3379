"""Encoder-decoder models for text: encoder and decoder are two engines; tokens equal transformers'."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import trtkit as library
from tests.support import tiny_t5
from tests.support.docs import DOCS, run_page
from trtkit.bundle.records import EncoderRecord
from trtkit.errors import GenerationError, ProblemsError, RequestError
from trtkit.llm.encoded import TextPrompts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

NEW, END = 16, 1
TEXTS = ["translate: one", "two", "a longer text of 23 b", "x", "summarize: four", "55", "six six", "translate: two"]


class Translator:
    """A bundle, and transformers' model of its folder."""

    def __init__(self, folder: Path, fields: dict[str, Any] | None = None, **changes: Any) -> None:
        self.folder, self.bundle = folder / "t5", folder / "bundle"
        self.model = tiny_t5.save(self.folder, fields, **changes)
        library.build(str(self.folder), precision="fp32", llm={"logits": "all"}, out=self.bundle)

    def packed(self, **llm: Any) -> Path:
        """Return a bundle in whose calls texts are read while others are translated."""
        folder = self.folder.parent / "-".join(["packed", *llm])
        library.build(str(self.folder), precision="fp32", llm={"batching": "packed", **llm}, out=folder)
        return folder

    def wanted(self, ids: list[int], **how: Any) -> list[int]:
        """Return transformers' tokens up to the end, which trtkit's leave out.

        Without a cache, which transformers 5.23 makes of as many layers as the encoder has.
        """
        options = {"max_new_tokens": NEW, "do_sample": False, "use_cache": False, **how}
        return _until_end(self.model.generate(torch.tensor([ids]), **options)[0, 1:].tolist())


def _until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(END)] if END in ids else ids


def encoded(text: str) -> list[int]:
    """Return the tokens of a text as the encoder reads them."""
    return list(tiny_t5._tokenizer().encode(text))


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return Translator(tmp_path_factory.mktemp("translator"))


def tokens(llm: library.LLM, prompts: list[Any], **how: Any) -> list[list[int]]:
    params = library.SamplingParams(**{"temperature": 0.0, "max_tokens": NEW, **how})
    return [_until_end(list(output.outputs[0].token_ids)) for output in llm.generate(prompts, params)]


def test_tokens_are_those_of_transformers(translator: Translator) -> None:
    """In flight together, more requests than slots, of every length that the encoder takes, as text and as ids."""
    generator = np.random.default_rng(3)
    ids = [generator.integers(2, 200, length).tolist() for length in (1, 2, 7, tiny_t5.LENGTH, 16)]
    wanted = [translator.wanted(each) for each in (*map(encoded, TEXTS), *ids)]
    with library.LLM(translator.bundle, slots=4) as llm:
        assert tokens(llm, [*TEXTS, *ids]) == wanted
    assert len({tuple(each) for each in wanted}) > len(wanted) // 2  # what is read decides


def test_tokens_are_those_of_a_padded_batch(translator: Translator) -> None:
    """transformers pads texts of one batch and masks the padding, in the encoder and in what reads it."""
    tokenizer = tiny_t5._tokenizer()
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    arguments = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    options = {"max_new_tokens": NEW, "do_sample": False, "use_cache": False}
    wanted = translator.model.generate(**arguments, **options)[:, 1:].tolist()
    with library.LLM(translator.bundle, slots=len(TEXTS)) as llm:
        assert tokens(llm, TEXTS) == [_until_end(row) for row in wanted]


def test_beams_are_those_of_transformers(translator: Translator) -> None:
    with library.LLM(translator.bundle) as llm:
        for text in TEXTS[:3]:
            found = tokens(llm, [text], num_beams=3, max_tokens=9, temperature=1.0)[0]
            assert found == translator.wanted(encoded(text), num_beams=3, max_new_tokens=9)


PAGED = {"kv": "paged", "max_sequence_length": 64, "max_prefill_length": 16}


@pytest.mark.parametrize("llm", [{}, PAGED], ids=["linear", "paged"])
def test_texts_are_read_in_calls_in_which_others_decode(translator: Translator, llm: dict[str, Any]) -> None:
    with library.LLM(translator.packed(**llm), slots=4) as model:
        assert tokens(model, TEXTS) == [translator.wanted(encoded(text)) for text in TEXTS]
        found = tokens(model, [TEXTS[0]], num_beams=3, max_tokens=9, temperature=1.0)[0]
    assert found == translator.wanted(encoded(TEXTS[0]), num_beams=3, max_new_tokens=9)


def test_guesses_change_no_tokens(translator: Translator) -> None:
    wanted = [translator.wanted(encoded(text)) for text in TEXTS]
    with library.LLM(translator.bundle, slots=4, lookup=3) as llm:
        assert tokens(llm, TEXTS) == wanted


def test_a_slot_is_reused_for_the_same_text_only(translator: Translator) -> None:
    """Answers begin with the same token, whatever was read."""
    order = [TEXTS[index] for index in (0, 1, 0, 0, 1)]
    with library.LLM(translator.bundle, slots=2, min_shared_tokens=1) as llm:
        found = [tokens(llm, [text])[0] for text in order]
    assert found == [translator.wanted(encoded(text)) for text in order]


def test_verify_passes_and_notices_another_encoder(
    translator: Translator, tmp_path: Path, trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = trtkit("verify", translator.bundle, "--json").json()
    assert report["passed"]
    assert report["outputs"]["keys_and_values"]["relative_rms_error"] <= 1e-5
    assert report["outputs"]["logits"]["relative_rms_error"] <= 1e-5
    (tmp_path / "prompts.txt").write_text("\n".join(TEXTS[:2]))
    report = trtkit("verify", translator.bundle, "--inputs", tmp_path / "prompts.txt", "--json").json()
    assert report["passed"]
    assert report["samples"] == TEXTS[:2]
    from trtkit.llm.encoded.encoder import Encoder

    encode = Encoder.encode

    def unmasked(self: Encoder, values: Any) -> dict[str, Any]:
        found = encode(self, values)
        return {**found, "cross_mask": torch.ones_like(found["cross_mask"])}

    monkeypatch.setattr(Encoder, "encode", unmasked)
    ran = trtkit("verify", translator.folder, "--set", "precision=fp32", "--json")
    assert ran.code == 3
    assert ran.json()["outputs"]["keys_and_values"]["passed"]


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1, "d_kv": 7}, None),
        pytest.param(
            {"num_layers": 3, "num_decoder_layers": None, "relative_attention_num_buckets": 5, "num_heads": 5},
            None,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"model_type": "mt5", "relative_attention_max_distance": 9},
            {"tie_word_embeddings": False},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"model_type": "umt5", "feed_forward_proj": "gated-silu", "num_layers": 1},
            {"tie_word_embeddings": False},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["t5-1.1", "one-depth", "mt5", "umt5"],
)
def test_unusual_models(
    changes: dict[str, Any], fields: dict[str, Any] | None, tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    translator = Translator(tmp_path, fields, **changes)
    with library.LLM(translator.bundle) as llm:
        assert tokens(llm, TEXTS[:4]) == [translator.wanted(encoded(text)) for text in TEXTS[:4]]
    report = trtkit("verify", translator.bundle, "--json").json()
    assert report["passed"]
    assert max(output["relative_rms_error"] for output in report["outputs"].values()) <= 1e-5


@pytest.mark.slow
def test_a_head_of_its_own_and_copies_of_the_embedding(tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    """T5 1.1 stores a head that is not the embedding; some files repeat the embedding for encoder and decoder."""
    folder = tmp_path / "t5"
    tiny_t5.save(folder, {"tie_word_embeddings": False, "scale_decoder_outputs": False})
    path = folder / "model.safetensors"
    weights = load_file(path)
    head = torch.randn(tiny_t5.VOCAB, 36, generator=torch.Generator().manual_seed(1))
    copies = {f"{name}.embed_tokens.weight": weights["shared.weight"].clone() for name in ("encoder", "decoder")}
    save_file({**weights, **copies, "lm_head.weight": head}, path, {"format": "pt"})
    assert torch.equal(tiny_t5.load(folder).lm_head.weight, head)
    library.build(str(folder), precision="fp32", out=tmp_path / "bundle")
    report = trtkit("verify", tmp_path / "bundle", "--json").json()
    assert report["passed"]
    copies["decoder.embed_tokens.weight"] = copies["decoder.embed_tokens.weight"] + 1
    save_file({**weights, **copies}, path, {"format": "pt"})
    with pytest.raises(ProblemsError, match=r"`decoder.embed_tokens.weight` is not a weight of this model"):
        library.build(str(folder), precision="fp32", out=tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_builds_and_verifies(
    precision: str, translator: Translator, tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    window = ["--set", "llm.kv_window=used", "--set", "llm.max_source_length=31"]
    ran = trtkit("build", translator.folder, "--precision", precision, *window, "-o", tmp_path / "half")
    assert ran.code == 0
    report = trtkit("verify", tmp_path / "half", "--json").json()
    assert report["passed"]
    assert 0 < report["outputs"]["logits"]["relative_rms_error"] < 0.1


def test_commands_answer_prompts(translator: Translator, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": TEXTS[1], "max_tokens": 5, "ignore_eos": True}))
    ran = trtkit("generate", translator.bundle, "--prompt", TEXTS[0], "--max-tokens", NEW, "--json")
    assert _until_end(ran.json()["token_ids"]) == translator.wanted(encoded(TEXTS[0]))
    ran = trtkit("generate", translator.bundle, "--prompts", tmp_path / "prompts.jsonl", "--json")
    assert len(ran.json()["token_ids"]) == 5
    assert "of the encoder" in trtkit("inspect", translator.bundle).out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["generate", "BUNDLE", "this prompt is longer than that"],
            "the prompt has 32 tokens; the encoder takes 1",
        ),
        (["generate", "BUNDLE", "hello", "--system", "polite"], "the model takes no messages"),
        (["generate", "BUNDLE", "--audio", "SOUND"], "the model takes no audio"),
        (["serve", "BUNDLE"], "an encoder-decoder model cannot be served"),
        (["deploy", "BUNDLE", "--repository", "OUT"], "an encoder-decoder model cannot be served"),
        (["bench", "BUNDLE"], "an encoder-decoder model needs a text for its encoder"),
        (["eval", "BUNDLE", "--perplexity", "TEXT"], "cannot be evaluated on text"),
        (["plan", "BUNDLE"], "`plan` does not count"),
        (["plan", "FOLDER"], "`plan` does not count"),
        (
            ["build", "FOLDER", "--set", "quantize.method=int8_wo"],
            "quantize: does not apply to an encoder-decoder model",
        ),
        (["build", "FOLDER", "--set", "parallel.tensor=2"], "parallel: does not apply to an encoder-decoder model"),
        (["build", "FORCED"], "`forced_bos_token_id` is set, which is not supported"),
    ],
)
def test_refusals(
    command: list[str], said: str, translator: Translator, tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    forced = tmp_path / "forced"
    forced.mkdir()
    config = json.loads((translator.folder / "config.json").read_text())
    (forced / "config.json").write_text(json.dumps({**config, "forced_bos_token_id": 0}))
    (forced / "model.safetensors").symlink_to(translator.folder / "model.safetensors")
    (tmp_path / "text.txt").write_text("some words " * 50)
    places = {"BUNDLE": translator.bundle, "FOLDER": translator.folder, "FORCED": forced, "OUT": tmp_path / "out",
              "TEXT": tmp_path / "text.txt", "SOUND": tmp_path / "sound.wav"}  # fmt: skip
    ran = trtkit(*[places.get(word, word) for word in command])
    assert ran.code in (1, 2)
    assert said in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_what_cannot_be_read_is_refused(translator: Translator, tmp_path: Path) -> None:
    with library.LLM(translator.bundle) as llm:
        with pytest.raises(RequestError, match="the prompt has 0 tokens; the encoder takes 1 to 24"):
            llm.generate({"prompt_token_ids": []})
        with pytest.raises(RequestError, match="the model takes text only"):
            llm.generate({"prompt": "x", "images": ["a.png"]})
    record = EncoderRecord(model_type="t5", layers=3, length=24)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(GenerationError, match="`decoder_start_token_id` is missing"):
        TextPrompts(record, tmp_path)


def test_other_models_take_no_source_length(tmp_path: Path) -> None:
    from tests.support import tiny_chat
    from trtkit.errors import ConfigError

    tiny_chat.save_model(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"llm\.max_source_length: does not apply to a decoder-only LLM"):
        library.build(str(tmp_path / "model"), llm={"max_source_length": 9}, out=tmp_path / "bundle")


@pytest.mark.slow
def test_the_commands_of_the_page_translate(tmp_path: Path) -> None:
    """A small random model stands for the one to download."""
    tiny_t5.save(tmp_path / "t5-small", n_positions=64)
    run_page(DOCS / "encoder-decoder.md", tmp_path, {"hf download": "# hf download"})
