"""How text is cut into words before byte-level merging, by `tokenizer.ggml.pre`.

Source: the patterns of the models' own tokenizer.json, as llama.cpp's src/llama-vocab.cpp states them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Llama 3 and Qwen 2 differ in how many digits stay together, Qwen 3.5 counts marks as letters.
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, letters: str = r"\p{L}", rest: str = r"[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    """Return a pattern of words with the character before them, and what else."""
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
# GPT-4o and gpt-oss cut words before capitals, and keep a word's ending such as 's with it; Tekken keeps none.
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"


def _cased(digits: str, ending: str) -> str:
    """Return a pattern that cuts words before capitals."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{ending}|{before}{_UPPER}+{_LOWER}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_O200K, _TEKKEN = _cased(r"\p{N}{1,3}", f"{_ENDINGS}?"), _cased(r"\p{N}", "")
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# DeepSeek's models cut one after the other: numbers, Chinese and Japanese, and words.
_KANA_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _KANA_HAN,
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}",
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
# Letters with cases, first and last code points of their ranges.
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
    """How text is cut into words. patterns: one after the other; GPT-2's own if there are none.

    is_digit_alone: each digit is a word, before GPT-2's pattern. is_nfc: text is composed first.
    adds_bos: a start token is put before the text where the file does not say.
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
CUTS = {name: cut for cut, names in _BY_CUT.items() for name in names.split()}
"""By `tokenizer.ggml.pre`."""


def known_patterns() -> frozenset[str]:
    """Return the patterns of published tokenizers, none of which backtracks for long."""
    return frozenset(pattern for cut in _BY_CUT for pattern in cut.patterns)
