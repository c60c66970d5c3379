"""Reconstruction of a tokenizer from a GGUF file's metadata, in the form that transformers loads."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError, reading
from trtkit.sources.tokenizer import CopiedTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import tokenizers

    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.tokenizer import TokenizerSource

_KEY = "tokenizer.ggml."
_NORMAL = 1
_SPACE = "\u2581"


def sentencepiece_tokenizer(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return the tokenizer without its added tokens; text not covered by any piece becomes bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens, has_prefix = pieces(metadata), has_space_prefix(metadata)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[metadata.get(_KEY + "unknown_token_id", 0)]
    if stated := metadata.get(_KEY + "merges"):
        left_right = (merge.split(" ") for merge in stated)
        merges = [(left, right) for left, right in left_right]
    else:
        merges = _merges(tokens, metadata[_KEY + "scores"], metadata[_KEY + "token_type"])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    stripped: list[Any] = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    plain = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*plain, *stripped])
    return tokenizer


def pieces(metadata: Mapping[str, Any]) -> list[str]:
    """Return the tokens with SentencePiece's space marker, which llama.cpp's converter replaces in added ones."""
    return [token.replace(" ", _SPACE) for token in metadata[_KEY + "tokens"]]


def has_space_prefix(metadata: Mapping[str, Any]) -> bool:
    """Whether a space is prepended to the text."""
    return bool(metadata.get(_KEY + "add_space_prefix", True))


def _merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that form a piece: highest score first; for the same piece, earlier parts first."""
    ids = {token: index for index, token in enumerate(tokens) if types[index] == _NORMAL}
    merges = []
    for token, index in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                merges.append((-scores[index], left, right))
    return [(tokens[left], tokens[right]) for _, left, right in sorted(merges)]


# Kinds of tokenizers, and the fields that each needs in addition to its tokens.
_NEEDED = {"gpt2": "merges", "llama": "scores", "gemma4": "merges"}
_CONTROL, _USER_DEFINED = 3, 4


@dataclass(frozen=True)
class GgufTokenizer:
    """A tokenizer that a GGUF file describes."""

    metadata: Mapping[str, Any]
    where: str

    def write(self, folder: Path) -> list[Path]:
        """Write tokenizer.json, tokenizer_config.json with the chat template, and generation_config.json."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "tokenizer.json"
        with reading(self.where):
            build_tokenizer(self.metadata).save(str(path))
            config, generation = self._config(), self._generation()
        written = [path, _write_json(folder / "tokenizer_config.json", config)]
        return [*written, _write_json(folder / "generation_config.json", generation)]

    def _config(self) -> dict[str, Any]:
        tokens, template = self.metadata[_KEY + "tokens"], self.metadata.get("tokenizer.chat_template")
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        ids = {field: self.metadata.get(f"{_KEY}{key}_token_id") for key, field in names.items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{field: tokens[token_id] for field, token_id in ids.items() if token_id is not None},
            **({"chat_template": template} if template else {}),
        }

    def _generation(self) -> dict[str, Any]:
        """Return the ids for start, end and padding in generation; chat models may end a turn with another id."""
        ids = {name: self.metadata.get(f"{_KEY}{name}_token_id") for name in ("bos", "eos", "eot", "padding")}
        ends = list(dict.fromkeys(i for i in (ids["eos"], ids["eot"]) if i is not None))
        named = {"bos_token_id": ids["bos"], "eos_token_id": ends[0] if len(ends) == 1 else ends or None}
        named["pad_token_id"] = ids["padding"]
        return {name: value for name, value in named.items() if value is not None}


def gguf_tokenizer(file: GgufFile) -> TokenizerSource:
    """Return the file's tokenizer, an empty one if it has none. Raises SourceError for an unknown kind."""
    kind = file.metadata.get(_KEY + "model", "none")
    if kind in ("none", "no_vocab"):
        return CopiedTokenizer()
    fix = "build from the model's Hugging Face folder, which carries its tokenizer"
    if kind not in _NEEDED:
        raise SourceError(f"tokenizer `{kind}` is not supported; {', '.join(_NEEDED)} are", str(file.path), fix)
    pre = file.metadata.get(_KEY + "pre")
    if kind == "gpt2" and pre not in CUTS:
        raise SourceError(f"pre-tokenizer `{pre}` is not supported; {', '.join(CUTS)} are", str(file.path), fix)
    for name in ("tokens", "token_type", _NEEDED[kind]):
        if _KEY + name not in file.metadata:
            raise SourceError(f"metadata key `{_KEY}{name}` is missing", str(file.path), fix)
    fields = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
    return GgufTokenizer(fields, str(file.path))


def build_tokenizer(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return the tokenizer described by `tokenizer.ggml.*`."""
    if metadata[_KEY + "model"] != "gpt2":
        tokenizer, adds_bos = sentencepiece_tokenizer(metadata), True
        tokens, is_normalized = pieces(metadata), not has_space_prefix(metadata)
    else:
        cut, tokens, is_normalized = CUTS[metadata[_KEY + "pre"]], metadata[_KEY + "tokens"], False
        tokenizer, adds_bos = _byte_level_tokenizer(metadata, cut), cut.adds_bos
    _add_tokens(tokenizer, tokens, metadata[_KEY + "token_type"], is_normalized)
    bos, eos = "", ""
    if metadata.get(_KEY + "add_bos_token", adds_bos):
        bos = tokens[metadata[_KEY + "bos_token_id"]]
    if metadata.get(_KEY + "add_eos_token", False):
        eos = tokens[metadata[_KEY + "eos_token_id"]]
    _add_ends(tokenizer, bos, eos)
    return tokenizer


def _byte_level_tokenizer(metadata: Mapping[str, Any], cut: Cut) -> tokenizers.Tokenizer:
    """Return a byte-level BPE without its added tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    vocabulary = {token: index for index, token in enumerate(metadata[_KEY + "tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata[_KEY + "merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut.ignores_merges))
    if cut.is_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(cut)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _pre_tokenizer(cut: Cut) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if cut.patterns:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if cut.is_digit_alone:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return byte_level


def _add_tokens(
    tokenizer: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], is_normalized: bool
) -> None:
    """Add the tokens that are never split: control tokens, which decoding may skip, and user-defined ones.

    is_normalized: whether user-defined tokens are matched after spaces have been marked.
    """
    from tokenizers import AddedToken

    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    plain = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=is_normalized) for token in plain])


def _add_ends(tokenizer: tokenizers.Tokenizer, bos: str, eos: str) -> None:
    """Add a start token before and an end token after each text; none if empty."""
    from tokenizers import processors

    if bos or eos:
        single = [part for part in (bos, "$A", eos) if part]
        second = [part for part in (bos, "$B:1", eos) if part]
        special = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token]
        tokenizer.post_processor = processors.TemplateProcessing(single, single + second, special)


def _write_json(path: Path, data: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


# Llama 3 and Qwen 2 differ in the number of digits kept together; Qwen 3.5 counts marks as letters.
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}", rest: str = r"[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    """Return a pattern of words with the preceding character, and of everything else."""
    return rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?{rest}|{_SPACES}"


_LLAMA3, _QWEN2 = _words(r"\p{N}{1,3}"), _words(r"\p{N}")
_QWEN35 = _words(r"\p{N}", r"[\p{L}\p{M}]", r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
_SEED = _words(r"\p{N}{1}", rest=r"[^\s\p{L}\p{N}\r\n]+")
_EXAONE = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_LING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_JAIS2 = _LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + "".join(
    (*(rf"\s{{{2**power}}}(?!\S)|" for power in range(9, 1, -1)), r"\s{1,2}(?!\S)|\s{1}")
)
# GPT-4o and gpt-oss split words before capitals, and keep suffixes such as 's with them; Tekken does not keep any.
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"


def _cased(digits: str, ending: str) -> str:
    """Return a pattern that splits words before capitals."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{ending}|{before}{_UPPER}+{_LOWER}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_O200K, _TEKKEN = _cased(r"\p{N}{1,3}", f"{_ENDINGS}?"), _cased(r"\p{N}", "")
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# DeepSeek's models apply these in turn: numbers, Chinese and Japanese, and words.
_KANA_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _KANA_HAN,
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}",
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
# Cased letters: first and last code points of their ranges.
_CASED = """
    41-5A 61-7A B5-B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F-37F 386-386 388-38A
    38C-38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B
    1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59-1F59 1F5B-1F5B 1F5D-1F5D 1F5F-1F7D
    1F80-1FB4 1FB6-1FBC 1FBE-1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102-2102
    2107-2107 210A-2113 2115-2115 2119-211D 2124-2124 2126-2126 2128-2128 212A-212D 212F-2134 2139-2139 213C-213F
    2145-2149 214E-214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787
    A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2
    10CC0-10CF2 118A0-118DF 1E900-1E943"""
_LATIN = "".join("-".join(chr(int(end, 16)) for end in ends.split("-")) for ends in _CASED.split())
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_LATIN}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK,
    r"\p{N}+",
)
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_KANA_HAN}",
    _cased(r"\p{N}", f"{_ENDINGS}?"),
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True)
class Cut:
    """How text is split into words. patterns: applied in turn; GPT-2's own if empty.

    is_digit_alone: whether each digit is a word, before GPT-2's pattern applies. is_nfc: whether text is NFC-normalized
    first. adds_bos: whether a start token is prepended if the file does not specify it.
    """

    patterns: tuple[str, ...] = ()
    is_digit_alone: bool = False
    is_nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


_GPT_2, _DIGITS = Cut(), Cut(is_digit_alone=True)
_LLAMA = Cut((_LLAMA3,), ignores_merges=True, adds_bos=True)
_QWEN, _O200K_CUT = Cut((_QWEN2,)), Cut((_O200K,))
_NEOX = Cut(is_nfc=True)
_BY_CUT: dict[Cut, str] = {
    _GPT_2: "gpt-2 phi-2 a.x-4.0 exaone4 gigachat granite-docling jais mellum trillion",
    _NEOX: "mpt olmo",
    _DIGITS: "smollm starcoder codeshell exaone minerva-7b refact",
    replace(_DIGITS, is_nfc=True): "command-r",
    _LLAMA: "llama-bpe llama3 llama-v3 falcon3 falcon-h1 lfm2 midm-2.0 pixtral",
    Cut((_LLAMA3,)): "smaug-bpe dbrx glm4 chatglm-bpe",
    Cut((r"\p{N}{1,3}", _words(r"\p{N}+")), ignores_merges=True): "minicpm5",
    Cut((_JAIS2,)): "jais-2",
    replace(_QWEN, is_nfc=True): "qwen2",
    _QWEN: "deepseek-r1-qwen f2llmv2 grok-2 hunyuan kormo megrez solar-open stablelm2",
    Cut((_QWEN35,), is_nfc=True): "qwen35",
    Cut((_SEED,)): "seed-coder",
    Cut((_EXAONE,)): "exaone-moe",
    Cut((_LING,)): "bailingmoe bailingmoe2",
    _O200K_CUT: "gpt-4o kanana2 llama4 minimax-m2 talkie",
    Cut((r"\d{1,3}(?=(?:\d{3})*\b)", _O200K)): "tiny_aya",
    Cut((_TEKKEN,), ignores_merges=True, adds_bos=True): "tekken",
    Cut(_DEEPSEEK3): "deepseek-v3 hunyuan-dense joyai-llm",
    Cut(_DEEPSEEK_CODER): "deepseek-coder",
    Cut(_DEEPSEEK_LLM): "deepseek-llm",
    Cut(_YOUTU, ignores_merges=True): "youtu",
    Cut(_FALCON): "falcon",
    Cut((_BLOOM,)): "bloom gpt3-finnish poro-chat",
    Cut((_BLOOM, r"\p{N}")): "viking",
}
# Source: the patterns of the models' own tokenizer.json, as llama.cpp's src/llama-vocab.cpp states them.
CUTS = {name: cut for cut, names in _BY_CUT.items() for name in names.split()}
"""By `tokenizer.ggml.pre`."""


def known_patterns() -> frozenset[str]:
    """Return the patterns of published tokenizers, none of which backtracks excessively."""
    return frozenset(pattern for cut in _BY_CUT for pattern in cut.patterns)
