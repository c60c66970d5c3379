"""A bundle's tokenizer: transformers' own, loaded from the bundle, and the bytes of its tokens."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from trtkit.errors import GenerationError, RequestError
from trtkit.runtime.text.limits import check_text
from trtkit.runtime.text.trial import json_settings, load_tokenizer, try_patterns, try_template

# Each of these files can hold a vocabulary.
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")


class Tokenizer:
    """Converts text to token ids and back.

    hf: transformers' tokenizer, which guided decoding reads. eos_token_ids: the tokens that end an answer. untried: the
    folder of a chat template that is still to be tried, within limits, before its first use.
    """

    def __init__(self, hf: Any, eos_token_ids: tuple[int, ...] = (), untried: Path | None = None) -> None:
        self.hf = hf
        self.eos_token_ids = eos_token_ids
        self._untried = untried

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, None if there is none."""
        token: int | None = self.hf.bos_token_id
        return token

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens, including added ones. The model's own `vocab_size` may be larger, because of padding."""
        return len(self.hf)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that `skip_special_tokens` leaves out."""
        added = getattr(self.hf, "added_tokens_decoder", {})
        return frozenset(token for token, content in added.items() if content.special)

    @property
    def special_tokens(self) -> list[str]:
        """The texts of `special_ids`."""
        return [self.hf.convert_ids_to_tokens(token) for token in sorted(self.special_ids)]

    @cached_property
    def ids(self) -> frozenset[int]:
        """All ids that have a token."""
        return frozenset(self.hf.get_vocab().values())

    @cached_property
    def byte_level_table(self) -> list[bytes]:
        """Each token's bytes for byte-level BPE; empty for other tokenizers."""
        is_byte_level = [kind for kind in decoders(self.hf) if kind != "Fuse"] == ["ByteLevel"]
        return byte_level_table(self.hf.get_vocab()) if is_byte_level else []

    @cached_property
    def byte_fallbacks(self) -> dict[int, bytes]:
        """The bytes of SentencePiece's byte tokens, by id."""
        return byte_fallbacks(self.hf.get_vocab()) if "ByteFallback" in decoders(self.hf) else {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text; `add_special_tokens` adds the tokenizer's surrounding tokens, such as `<s>`.

        Thread-safe. Raises RequestError for an unpaired surrogate, which is not valid text.
        """
        _check_text(text)
        return [int(token) for token in self.hf.encode(text, add_special_tokens=add_special_tokens)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens without clean-up: spaces before punctuation are kept. Unknown ids yield nothing."""
        options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        return str(self.hf.decode([int(token) for token in ids], **options))

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(self.hf.chat_template)

    def chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
        """Return the tokens of a conversation, opened for the assistant's answer.

        messages: `{"role": ..., "content": ...}` each. Raises RequestError if the template rejects them,
        GenerationError if it takes too much time or memory.
        """
        if not self.has_chat_template:
            raise RequestError("the tokenizer has no chat template", fix="give plain text")
        if self._untried is not None:
            try_template(self._untried)
            self._untried = None
        options = {"add_generation_prompt": add_generation_prompt, "tokenize": True, "return_dict": False}
        import jinja2

        _check_text(json.dumps(list(messages), ensure_ascii=False, default=str, skipkeys=True))
        try:
            ids = self.hf.apply_chat_template([dict(message) for message in messages], **options)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            fix = "use roles and fields that the model's template supports"
            raise RequestError(f"the chat template does not take these messages: {error}", fix=fix) from None
        return [int(token_id) for token_id in ids]

    def token_id(self, text: str) -> int | None:
        """Return the id of a token by its text, such as `<|im_end|>`; None if there is no such token."""
        token = self.hf.get_vocab().get(text)
        return None if token is None else int(token)


def open_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer in a bundle's `model/` folder; None if it has none, in which case prompts are token ids.

    Raises GenerationError if its files cannot be read.
    """
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        return None
    try_patterns(folder)
    try:
        hf = load_tokenizer(folder)
        hf.encode("a")  # fields such as `model_max_length` are only read now
    except Exception as error:  # whatever a tokenizer's file makes transformers or its Rust part raise
        what = f"the tokenizer cannot be loaded: {type(error).__name__}: {error}"
        raise GenerationError(what, str(folder), "build the bundle again from a source whose tokenizer loads") from None
    if getattr(hf, "is_fast", False):
        # transformers would do this at the first call, when another thread may be reading them.
        hf.backend_tokenizer.no_truncation()
        hf.backend_tokenizer.no_padding()
    return Tokenizer(hf, eos_token_ids(folder) or tuple(_ids(hf.eos_token_id)), folder)


def _check_text(text: str) -> None:
    """Raise RequestError for an unpaired surrogate."""
    try:
        check_text(text)
    except ValueError as error:
        raise RequestError(str(error), "prompt", "send text that UTF-8 can encode") from None


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Return the tokens that end an answer: from `generation_config.json`, else `config.json`, else an empty tuple."""
    for name in ("generation_config.json", "config.json"):
        value = json_settings(folder / name).get("eos_token_id")
        try:
            ids = tuple(_ids(value))
        except (TypeError, ValueError, OverflowError):
            what = f"`eos_token_id` is `{str(value)[:100]}`, not a token id or a list of them"
            raise GenerationError(what, str(folder / name), "build the bundle again") from None
        if ids:
            return ids
    return ()


def _ids(value: Any) -> list[int]:
    """Return `eos_token_id` as a list: it may be absent, a number or a list."""
    if value is None:
        return []
    return [int(token) for token in value] if isinstance(value, list) else [int(value)]


_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


def decoders(hf: Any) -> list[str]:
    """Return the kinds of a tokenizer's decoders in order; empty if transformers decodes in Python."""
    backend = getattr(hf, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return []
    return _kinds(json.loads(backend.decoder.__getstate__()))


def _kinds(decoder: Mapping[str, Any]) -> list[str]:
    if decoder["type"] == "Sequence":
        return [kind for part in decoder["decoders"] for kind in _kinds(part)]
    return [decoder["type"]]


def byte_level_table(vocabulary: Mapping[str, int]) -> list[bytes]:
    """Return each token's bytes in byte-level BPE, by id; empty if an id has no token."""
    of_char = _byte_of_char()
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for content, token in vocabulary.items():
        table[token] = _bytes(content, of_char)
    return table


def byte_fallbacks(vocabulary: Mapping[str, int]) -> dict[int, bytes]:
    """Return the bytes of SentencePiece's byte tokens, by id."""
    matches = ((token, _BYTE_TOKEN.fullmatch(content)) for content, token in vocabulary.items())
    return {token: bytes.fromhex(match[1]) for token, match in matches if match}


def _bytes(content: str, of_char: Mapping[str, int]) -> bytes:
    """Return a token's bytes; one with a character outside the alphabet, such as an added token, is plain text."""
    values = [of_char.get(char) for char in content]
    return content.encode() if None in values else bytes(value for value in values if value is not None)


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's alphabet (`bytes_to_unicode`): printable bytes map to themselves, the rest to U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {chr(byte): byte for byte in printable}
    return shown | {chr(0x100 + index): byte for index, byte in enumerate(others)}
