"""Tokenizers out of GGUF metadata encode and decode as those of transformers."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any

import gguf
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    CohereTokenizer,
    GemmaTokenizer,
    GPT2Tokenizer,
    GPTNeoXTokenizer,
    Qwen2Tokenizer,
    Qwen3_5Tokenizer,
)
from transformers.convert_slow_tokenizer import TikTokenConverter

from tests.unit.sources.gguf.write_gguf import tiny
from trtkit.errors import SourceError
from trtkit.sources.decoder_source import open_gguf
from trtkit.sources.gguf.tokenizer import CUTS

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    "The curvature of spacetime, isn't it?",
    "IT'S 2026: 12345 + 0.5 = 12345.5",
    "  indented\n\n\n\tcode()  # comment \n ",
    "naïve café ñ 日本語 🙂 e\u0301",
    "",
    " ",
]
CONTROL, USER_DEFINED, NORMAL = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED, gguf.TokenType.NORMAL
EXTRA = [("<|start|>", CONTROL), ("<|end|>", CONTROL), ("<tool>", USER_DEFINED)]


@cache
def vocabulary() -> tuple[dict[str, int], list[str]]:
    """Return 700 byte-level tokens and their merges, trained on Python's own documentation."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        sorted(topics.values())[:20],
        trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False),
    )
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], [" ".join(pair) for pair in model["merges"]]


def rebuilt(folder: Path, pre: str, **more: Any) -> Any:
    """Return the tokenizer that transformers loads after a GGUF file with this vocabulary was opened."""
    vocab, merges = vocabulary()
    tokens = sorted(vocab, key=vocab.__getitem__)

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([*tokens, *(token for token, _ in EXTRA)])
        writer.add_token_types([NORMAL] * len(tokens) + [kind for _, kind in EXTRA])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(700)
        writer.add_eos_token_id(701)
        if (adds_bos := more.get("adds_bos", False)) is not None:
            writer.add_add_bos_token(adds_bos)
        if "eot" in more:
            writer.add_eot_token_id(more["eot"])

    open_gguf(tiny(folder / "m.gguf", keys)).tokenizer.write(folder / "out")
    return AutoTokenizer.from_pretrained(folder / "out", local_files_only=True)


@pytest.mark.parametrize(
    ("pre", "kind"),
    [
        ("gpt-2", GPT2Tokenizer),
        ("phi-2", GPT2Tokenizer),
        ("qwen2", Qwen2Tokenizer),
        ("qwen35", Qwen3_5Tokenizer),
        ("mpt", GPTNeoXTokenizer),
        ("olmo", GPTNeoXTokenizer),
        ("command-r", CohereTokenizer),
    ],
)
def test_text_is_cut_as_transformers_cuts_it(pre: str, kind: Any, tmp_path: Path) -> None:
    vocab, merges = vocabulary()
    got, want = rebuilt(tmp_path, pre), kind(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges])
    for text in TEXTS:
        assert got(text).input_ids == want(text).input_ids
        assert got.decode(got(text).input_ids) == want.decode(want(text).input_ids)


def test_llama_3_cuts_by_the_pattern_of_its_makers() -> None:
    assert CUTS["llama-bpe"].patterns == CUTS["smaug-bpe"].patterns == (TikTokenConverter().pattern,)


def test_patterns_are_those_of_transformers() -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    both = {pre: cut.patterns for pre, cut in CUTS.items() if pre in GGUF_PRE_TOKENIZER_SPLITS}
    assert both == {pre: (GGUF_PRE_TOKENIZER_SPLITS[pre],) for pre in both}
    assert set(GGUF_PRE_TOKENIZER_SPLITS) - set(both) == {"jina-v5-nano"}


@pytest.mark.parametrize(
    ("pre", "numbers"),
    [("gpt-2", [" 12345"]), ("smollm", [" ", "1", "2", "3", "4", "5"]), ("llama-bpe", [" ", "123", "45"]),
     ("glm4", [" ", "123", "45"]), ("gpt-4o", [" ", "123", "45"]),
     ("qwen2", [" ", "1", "2", "3", "4", "5"]), ("starcoder", [" ", "1", "2", "3", "4", "5"])],
)  # fmt: skip
def test_numbers_are_cut_as_the_kind_says(pre: str, numbers: list[str], tmp_path: Path) -> None:
    assert words(rebuilt(tmp_path, pre), "x 12345") == ["x", *numbers]


TEXT = "I've TAKEN it\u20143.14 or 12345,\u4e2d\u6587\u30c6\u30b9\u30c8\ud55c\uad6d(ab)!\n\n   x\u00b2"
HAN_KANA, HANGUL = "\u4e2d\u6587\u30c6\u30b9\u30c8", "\ud55c\uad6d"
CUT_TEXTS = {
    "exaone-moe": f"I|'ve| TAKEN it|\u2014|3|.|1|4| or| |1|2|3|4|5|,{HAN_KANA}{HANGUL}|(ab|)!\n|\n|  | x|\u00b2",
    "seed-coder": f"I|'ve| TAKEN| it|\u2014|3|.|1|4| or| |1|2|3|4|5|,{HAN_KANA}{HANGUL}|(ab|)!|\n\n|  | x|\u00b2",
    "bailingmoe": f"I|'ve| TAKEN| it|\u2014|3|.|1|4| or| |1|2|3|4|5|,{HAN_KANA}{HANGUL}|(ab|)!\n\n|  | x|\u00b2",
    "tiny_aya": f"I've| TAKEN| it|\u2014|3|.|14| or| |12|345|,{HAN_KANA}{HANGUL}|(ab|)!\n\n|  | x|\u00b2",
    "deepseek-v3": f"I|'ve| TAKEN| it|\u2014|3|.|14| or| |123|45|,|{HAN_KANA}|{HANGUL}|(ab|)!\n\n|  | x|\u00b2",
    "deepseek-coder": (
        f"I|'|ve| TAKEN| it|\u2014|3|.|1|4| or| |1|2|3|4|5|,|{HAN_KANA}{HANGUL}|(|ab|)!|\n|\n|  | x|\u00b2"
    ),
    "deepseek-llm": f"I|'|ve| TAKEN| it|\u2014|3|.|14| or| |12345|,|{HAN_KANA}{HANGUL}|(|ab|)!|\n|\n|  | x|\u00b2",
    "youtu": f"I've| TAKEN| it|\u2014|3|.|1|4| or| |1|2|3|4|5|,|{HAN_KANA}|{HANGUL}|(ab|)!\n\n|  | x|\u00b2",
    "falcon": f"I|'|ve| TAKEN| it|\u2014|3|.|14| or| |123|45|,|{HAN_KANA}{HANGUL}|(|ab|)!|\n\n  | x|\u00b2",
    "bloom": f"I've| TAKEN| it\u20143|.|14| or| 12345|,|{HAN_KANA}{HANGUL}|(|ab|)!\n\n  | x\u00b2",
    "viking": f"I've| TAKEN| it\u2014|3|.|1|4| or| |1|2|3|4|5|,|{HAN_KANA}{HANGUL}|(|ab|)!\n\n  | x|\u00b2",
    "minicpm5": f"I|'ve| TAKEN| it|\u2014|3|.|14| or| |123|45|,{HAN_KANA}{HANGUL}|(ab|)!\n\n|  | x|\u00b2",
}
"""Words by the patterns that llama.cpp's src/llama-vocab.cpp states."""


def words(tokenizer: Any, text: str) -> list[str]:
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [decoders.ByteLevel().decode([word]) for word, _ in cut]


@pytest.mark.parametrize("pre", CUT_TEXTS)
def test_text_is_cut_by_the_pattern_of_the_kind(pre: str, tmp_path: Path) -> None:
    assert words(rebuilt(tmp_path, pre), TEXT) == CUT_TEXTS[pre].split("|")


def test_jais_2_cuts_spaces_by_powers_of_two(tmp_path: Path) -> None:
    assert words(rebuilt(tmp_path, "jais-2"), "a" + 7 * " " + "b") == ["a", 4 * " ", "  ", " b"]


@pytest.mark.parametrize("pre", CUTS)
def test_text_comes_back(pre: str, tmp_path: Path) -> None:
    tokenizer = rebuilt(tmp_path, pre)
    for text in TEXTS[:3]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_added_tokens_are_never_cut(tmp_path: Path) -> None:
    tokenizer = rebuilt(tmp_path, "gpt-2")
    ids = tokenizer("<|start|>a<tool>b<|end|>").input_ids
    assert [ids[0], ids[2], ids[-1], len(ids)] == [700, 702, 701, 5]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<tool>b"
    assert (tokenizer.bos_token, tokenizer.eos_token, len(tokenizer)) == ("<|start|>", "<|end|>", 703)


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_start_token_is_added_where_the_file_says(adds_bos: bool, tmp_path: Path) -> None:
    tokenizer = rebuilt(tmp_path, "llama-bpe", adds_bos=adds_bos)
    plain = tokenizer("a b", add_special_tokens=False).input_ids
    assert tokenizer("a b").input_ids == [700] * adds_bos + plain
    assert len(plain) == 2


@pytest.mark.parametrize(("more", "ends"), [({}, 701), ({"eot": 702}, [701, 702]), ({"eot": 701}, 701)])
def test_generation_ends_at_every_end_token(more: dict[str, int], ends: Any, tmp_path: Path) -> None:
    rebuilt(tmp_path, "gpt-2", **more)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "bos_token_id": 700,
        "eos_token_id": ends,
    }


def test_llama_bpe_adds_a_start_token_where_the_file_does_not_say(tmp_path: Path) -> None:
    assert rebuilt(tmp_path, "llama-bpe", adds_bos=None)("a").input_ids[0] == 700
    assert rebuilt(tmp_path, "gpt-2", adds_bos=None)("a").input_ids[0] != 700


SPACE = "\u2581"
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<tool>", f"{SPACE}{SPACE}"]
BYTE, UNKNOWN = gguf.TokenType.BYTE, gguf.TokenType.UNKNOWN
PIECE_TYPES = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, USER_DEFINED, USER_DEFINED]


@cache
def trained_pieces() -> tuple[list[str], list[str]]:
    """Return characters and what 400 merges made of them in Python's documentation, the best first; and the merges."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(SPACE)
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
    trained.train_from_iterator(sorted(topics.values())[:20], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [" ".join(pair) for pair in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), merges


def scored_pieces() -> list[str]:
    return trained_pieces()[0]


def sentencepiece_tokenizer(folder: Path, has_prefix: bool) -> Any:
    """Return the tokenizer that transformers loads after a GGUF file with these pieces was opened."""
    pieces = scored_pieces()

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([*PIECES[:-1], "  ", *pieces])  # llama.cpp's converter writes spaces in added pieces
        writer.add_token_scores([0.0] * len(PIECES) + [-float(rank) for rank in range(len(pieces))])
        writer.add_token_types([*PIECE_TYPES, *[NORMAL] * len(pieces)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_space_prefix(has_prefix)

    open_gguf(tiny(folder / "m.gguf", keys)).tokenizer.write(folder / "out")
    return AutoTokenizer.from_pretrained(folder / "out", local_files_only=True)


def joined_by_score(text: str) -> list[int]:
    """Join the neighbours whose piece is best, the first of equals, until none fit; bytes for what is no piece."""
    rank = {piece: index for index, piece in enumerate(scored_pieces())}
    parts = list(text.replace(" ", SPACE))
    while True:
        pairs = [(rank[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in rank]
        if not pairs:
            break
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids = [[len(PIECES) + rank[p]] if p in rank else [3 + byte for byte in p.encode()] for p in parts]
    return [index for part in ids for index in part]


def test_sentencepiece_joins_by_score(tmp_path: Path) -> None:
    tokenizer = sentencepiece_tokenizer(tmp_path, has_prefix=True)
    for text in [*TEXTS[:4], *topics["assignment"].splitlines()[:40]]:
        got = tokenizer(text).input_ids
        assert got == [1, *(joined_by_score(f" {text}") if text else [])]
        assert tokenizer.decode(got, skip_special_tokens=True) == text


def test_sentencepiece_takes_added_pieces_whole(tmp_path: Path) -> None:
    tokenizer = sentencepiece_tokenizer(tmp_path, has_prefix=False)
    tool, spaces = PIECES.index("<tool>"), len(PIECES) - 1
    got = tokenizer("a  b<tool></s>").input_ids
    assert got == [1, *joined_by_score("a"), spaces, *joined_by_score("b"), tool, 2]
    assert tokenizer.decode(got, skip_special_tokens=True) == "a  b<tool>"


def test_gemma_4_merges_as_transformers_does(tmp_path: Path) -> None:
    """Its files list the merges of a SentencePiece vocabulary."""
    pieces, merges = trained_pieces()
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]

    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gemma4")
        writer.add_token_list(tokens)
        writer.add_token_scores([-1000.0] * len(tokens))
        writer.add_token_types([CONTROL] * 3 + [UNKNOWN] + [BYTE] * 256 + [NORMAL] * len(pieces))
        writer.add_token_merges(merges)
        for add, index in ((writer.add_bos_token_id, 2), (writer.add_eos_token_id, 1), (writer.add_unk_token_id, 3)):
            add(index)
        writer.add_add_space_prefix(False)
        writer.add_add_bos_token(True)

    open_gguf(tiny(tmp_path / "m.gguf", keys)).tokenizer.write(tmp_path / "out")
    got = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    vocab = {token: index for index, token in enumerate(tokens)}
    want = GemmaTokenizer(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges])
    for text in [*TEXTS, *topics["assignment"].splitlines()[:40]]:
        plain = want(text, add_special_tokens=False).input_ids
        assert got(text).input_ids == [2, *plain]
        assert got.decode(plain) == want.decode(plain) == text


@pytest.mark.parametrize(("model", "missing"), [("gpt2", "merges"), ("llama", "scores"), ("gemma4", "merges")])
def test_missing_parts_of_a_tokenizer_are_named(model: str, missing: str, tmp_path: Path) -> None:
    def keys(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["a"])
        writer.add_token_types([NORMAL])

    with pytest.raises(SourceError, match=f"metadata key `tokenizer.ggml.{missing}` is missing"):
        open_gguf(tiny(tmp_path / "m.gguf", keys))
