"""Small tokenizers of every kind, built on the spot."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from trtkit.runtime.text import Tokenizer

CORPUS = [
    "Gravity is a fundamental concept in physics that describes the curvature of spacetime.",
    "The capital of France is Paris, and the capital of Italy is Rome. It's don't can't!",
    "日本語のテキスト 中文文本 naïve café привет мир שלום 👩‍👩‍👧 🙂",
    "def fibonacci(n):\n    if n < 2:\n        return n\n\n\treturn 0",
] * 3
CHATML = (
    "{% for message in messages %}{% if message['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>"]


def wrap(backend: Backend, **options: Any) -> Tokenizer:
    """Add two special tokens and one that is not, with a space in it."""
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken("<tool call>", special=False, normalized=False)])
    hf = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", bos_token="<|im_start|>", **options)
    return Tokenizer(hf, (hf.eos_token_id,))


def byte_level(**options: Any) -> Tokenizer:
    """GPT-2's kind."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet))
    return wrap(backend, **options)


def llama_like() -> Tokenizer:
    """Llama 2's kind: `▁` for spaces, bytes for what the vocabulary lacks, the first space dropped."""
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(CORPUS[:2] * 3, trainers.BpeTrainer(vocab_size=200))
    vocabulary = {token: index for index, token in enumerate(["<unk>", *bytes_])}
    for token in trained.get_vocab():
        vocabulary.setdefault(token, len(vocabulary))
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = trained.normalizer
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    return wrap(backend)


def metaspace() -> Tokenizer:
    """A Unigram model behind Metaspace, as T5's or XGLM's."""
    backend = Backend(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>"))
    return wrap(backend)


def word_piece() -> Tokenizer:
    """BERT's kind."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"]))
    return wrap(backend)


def suffix_bpe() -> Tokenizer:
    """CLIP's kind: `</w>` ends a word, and is a space unless it ends the text."""
    backend = Backend(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(vocab_size=300, end_of_word_suffix="</w>", special_tokens=["<unk>"])
    backend.train_from_iterator(CORPUS, trainer)
    return wrap(backend)


KINDS = {
    "byte_level": byte_level,
    "llama_like": llama_like,
    "metaspace": metaspace,
    "word_piece": word_piece,
    "suffix_bpe": suffix_bpe,
}
