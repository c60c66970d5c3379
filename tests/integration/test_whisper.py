"""Speech recognition: encoder and decoder are two engines; tokens equal transformers'."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import trtkit as library
from tests.support import tiny_whisper
from tests.support.docs import DOCS, run_page
from trtkit.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import WhisperForConditionalGeneration

    from tests.conftest import Ran
    from trtkit.arrays import Array

pytestmark = pytest.mark.usefixtures("one_export")
NEW = 30


class Recognizer:
    """A bundle, and transformers' model of its folder."""

    def __init__(self, folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> None:
        self.folder, self.bundle = folder / "whisper", folder / "bundle"
        self.model: WhisperForConditionalGeneration = tiny_whisper.save(self.folder, generation, **changes)
        library.build(str(self.folder), precision="fp32", out=self.bundle)

    def wanted(self, samples: Array, **how: Any) -> list[int]:
        """Return transformers' tokens up to the end, which trtkit's leave out."""
        ids = self.model.generate(
            tiny_whisper.features(self.folder, samples), max_new_tokens=NEW, do_sample=False, **how
        )[0].tolist()
        end = tiny_whisper.IDS["<|endoftext|>"]
        return (ids[: ids.index(end)] if end in ids else ids)[:NEW]


@pytest.fixture(scope="module")
def recognizer(tmp_path_factory: pytest.TempPathFactory) -> Recognizer:
    folder = tmp_path_factory.mktemp("recognizer")
    return Recognizer(folder)


def tokens(llm: library.LLM, prompts: list[dict[str, Any]]) -> list[list[int]]:
    params = library.SamplingParams(temperature=0.0, max_tokens=NEW)
    end = tiny_whisper.IDS["<|endoftext|>"]
    outputs = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]
    return [ids[: ids.index(end)] if end in ids else ids for ids in outputs]


def test_tokens_are_those_of_transformers(recognizer: Recognizer) -> None:
    """In flight together, more requests than slots, audio of any length up to the model's, in every language."""
    sounds = [tiny_whisper.sound(seed, 0.15 + 0.07 * seed) for seed in range(11)]
    with library.LLM(recognizer.bundle, slots=4) as llm:
        for how in ({"language": "en", "task": "transcribe"}, {"language": "de", "task": "translate"}):
            found = tokens(llm, [{"audio": sound, **how} for sound in sounds])
            wanted = [recognizer.wanted(sound, **how) for sound in sounds]
            assert found == wanted
            assert len({tuple(ids) for ids in wanted}) > len(sounds) // 2  # what is heard decides


def test_equal_prompts_of_other_audio_share_nothing(recognizer: Recognizer) -> None:
    """The tokens of all prompts are the same; a slot that keeps another recording's cache must not be gone on with."""
    sounds = [tiny_whisper.sound(seed) for seed in (1, 2, 1, 1, 2)]
    wanted = [recognizer.wanted(sound, language="en", task="transcribe") for sound in sounds]
    with library.LLM(recognizer.bundle, slots=2, min_shared_tokens=1) as llm:
        found = [tokens(llm, [{"audio": sound}])[0] for sound in sounds]
        assert llm.statistics.reused_tokens > 0  # those of the same recording
    assert found == wanted


def test_beams_are_those_of_transformers(recognizer: Recognizer) -> None:
    sound = tiny_whisper.sound(5)
    with library.LLM(recognizer.bundle) as llm:
        params = library.SamplingParams(num_beams=3, max_tokens=12, ignore_eos=False)
        found = llm.generate({"audio": sound}, params)[0].outputs[0].token_ids
    features = tiny_whisper.features(recognizer.folder, sound)
    wanted = recognizer.model.generate(features, language="en", task="transcribe", num_beams=3, max_new_tokens=12)
    assert list(found)[:12] == wanted[0].tolist()[: len(found)]


def test_files_are_read_at_any_rate(recognizer: Recognizer, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    sound = tiny_whisper.sound(3)
    rounded = (np.clip(sound, -1, 1) * 32767).astype("<i2").astype(np.float32) / 32768
    tiny_whisper.write_wav(tmp_path / "sound.wav", sound)
    tiny_whisper.write_wav(tmp_path / "half.wav", sound[::2], tiny_whisper.RATE // 2)
    (tmp_path / "prompts.jsonl").write_text(
        json.dumps({"audio": str(tmp_path / "sound.wav"), "language": "de", "task": "translate", "max_tokens": 9})
    )
    ran = trtkit("generate", recognizer.bundle, "--audio", tmp_path / "sound.wav", "--max-tokens", NEW, "--json")
    wanted = recognizer.wanted(rounded, language="en", task="transcribe")
    assert ran.json()["token_ids"][: len(wanted)] == wanted
    ran = trtkit("generate", recognizer.bundle, "--prompts", tmp_path / "prompts.jsonl", "--json")
    assert ran.json()["token_ids"] == recognizer.wanted(rounded, language="de", task="translate")[:9]
    ran = trtkit("generate", recognizer.bundle, "--audio", tmp_path / "half.wav", "--json")
    assert ran.code == 0
    assert ran.json()["token_ids"]


def test_verify_passes_and_notices_another_encoder(
    recognizer: Recognizer, tmp_path: Path, trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = trtkit("verify", recognizer.bundle, "--json").json()
    assert report["passed"]
    assert set(report["outputs"]) == {"keys_and_values", "logits"}
    assert report["outputs"]["logits"]["relative_rms_error"] <= 1e-5
    tiny_whisper.write_wav(tmp_path / "sound.wav", tiny_whisper.sound(4))
    report = trtkit("verify", recognizer.bundle, "--inputs", tmp_path / "sound.wav", "--json").json()
    assert report["passed"]
    from trtkit.llm.encoded.encoder import Encoder

    encode = Encoder.encode

    def swapped(self: Encoder, features: Array) -> dict[str, Any]:
        found = encode(self, features)
        return {**found, "cross_key_0": found["cross_key_1"]}

    monkeypatch.setattr(Encoder, "encode", swapped)
    ran = trtkit("verify", recognizer.folder, "--set", "precision=fp32", "--json")
    assert ran.code == 3
    assert not ran.json()["passed"]


@pytest.mark.parametrize(
    "changes",
    [
        {"d_model": 60, "encoder_attention_heads": 5, "decoder_attention_heads": 3, "activation_function": "relu"},
        {"tie_word_embeddings": False, "encoder_layers": 1, "decoder_layers": 1, "num_mel_bins": 9},
    ],
    ids=["sizes", "untied"],
)
def test_unusual_sizes(changes: dict[str, Any], tmp_path: Path) -> None:
    """A model of one language has no language tokens."""
    names = (
        "suppress_tokens",
        "no_timestamps_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "pad_token_id",
        "max_length",
    )
    plain = {name: tiny_whisper.GENERATION[name] for name in names}
    recognizer = Recognizer(tmp_path, plain | {"is_multilingual": False}, **changes)
    sounds = [tiny_whisper.sound(seed) for seed in range(3)]
    with library.LLM(recognizer.bundle) as llm:
        found = tokens(llm, [{"audio": sound} for sound in sounds])
        with pytest.raises(RequestError, match="only transcribes one language"):
            llm.generate({"audio": sounds[0], "language": "de"})
    assert found == [recognizer.wanted(sound) for sound in sounds]


def test_half_precision_builds_and_verifies(recognizer: Recognizer, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    window = ["--set", "llm.kv_window=used"]
    assert trtkit("build", recognizer.folder, "--precision", "fp16", *window, "-o", tmp_path / "half").code == 0
    report = trtkit("verify", tmp_path / "half", "--json").json()
    assert report["passed"]
    assert 0 < report["outputs"]["logits"]["relative_rms_error"] < 2e-2


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["generate", "BUNDLE", "hello"], "the model transcribes audio, and the prompt has none"),
        (["generate", "BUNDLE", "--audio", "LONG"], "the audio is longer than 1 s"),
        (["generate", "BUNDLE", "--audio", "TEXT"], "the file has no audio"),
        (["generate", "BUNDLE", "--audio", "GONE"], "the audio cannot be read"),
        (["generate", "BUNDLE", "--audio", "SOUND", "--language", "fr"], "`fr` is not a language of the model"),
        (["serve", "BUNDLE"], "a speech recognizer cannot be served"),
        (["deploy", "BUNDLE", "--repository", "OUT"], "a speech recognizer cannot be served"),
        (["bench", "BUNDLE"], "a speech recognizer needs audio"),
        (["eval", "BUNDLE", "--perplexity", "TEXT"], "cannot be evaluated on text"),
        (["plan", "BUNDLE"], "`plan` does not count"),
        (["plan", "FOLDER"], "`plan` does not count"),
        (["build", "FOLDER", "--set", "quantize.method=int8_wo"], "quantize: does not apply to a speech recognizer"),
        (["build", "FOLDER", "--set", "parallel.tensor=2"], "parallel: does not apply to a speech recognizer"),
        (
            ["build", "FOLDER", "--set", "llm.max_sequence_length=41", "--set", "llm.max_prefill_length=8"],
            "lower it to 40 or less",
        ),
        (["build", "SCALED"], "`scale_embedding` is `True`, only `False` is supported"),
    ],
)
def test_refusals(
    command: list[str], said: str, recognizer: Recognizer, tmp_path: Path, trtkit: Callable[..., Ran]
) -> None:
    tiny_whisper.write_wav(tmp_path / "sound.wav", tiny_whisper.sound(0))
    tiny_whisper.write_wav(tmp_path / "long.wav", tiny_whisper.sound(0, 1.2))
    (tmp_path / "text.txt").write_text("no audio " * 50)
    scaled = tmp_path / "scaled"
    scaled.mkdir()
    config = json.loads((recognizer.folder / "config.json").read_text())
    (scaled / "config.json").write_text(json.dumps({**config, "scale_embedding": True}))
    for name in ("model.safetensors", "preprocessor_config.json"):
        (scaled / name).symlink_to(recognizer.folder / name)
    places = {
        "BUNDLE": recognizer.bundle,
        "FOLDER": recognizer.folder,
        "SCALED": scaled,
        "LONG": tmp_path / "long.wav",
        "SOUND": tmp_path / "sound.wav",
        "TEXT": tmp_path / "text.txt",
        "GONE": tmp_path / "gone.wav",
        "OUT": tmp_path / "out",
    }
    ran = trtkit(*[places.get(word, word) for word in command])
    assert ran.code in (1, 2)
    assert said in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_other_models_take_no_audio(tmp_path: Path) -> None:
    from tests.support import tiny_chat

    tiny_chat.save_model(tmp_path / "model")
    sizes = {"max_sequence_length": 96, "max_prefill_length": 32}
    library.build(str(tmp_path / "model"), out=tmp_path / "bundle", precision="fp32", llm=sizes)
    with library.LLM(tmp_path / "bundle") as llm, pytest.raises(RequestError, match="the model takes no audio"):
        llm.generate({"audio": tiny_whisper.sound(0)})


@pytest.mark.slow
def test_the_commands_of_the_page_transcribe(tmp_path: Path) -> None:
    """A small random model stands for the one to download."""
    tiny_whisper.save(tmp_path / "whisper-tiny")
    tiny_whisper.write_wav(tmp_path / "talk.wav", tiny_whisper.sound(1))
    run_page(DOCS / "speech.md", tmp_path, {"hf download": "# hf download"})
