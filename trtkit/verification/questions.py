"""Questions with answers that can be checked: what perplexity does not show of a quantized language model.

A model may read a text nearly as well as before and no longer answer: SmolLM2 with int8 caches does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.execution import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.execution import DecoderExecution
    from trtkit.runtime.text import Tokenizer

_NEW_TOKENS = 24

# What small models know; an answer is right where one of the words is in it.
QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What is the capital of France?", ("Paris",)),
    ("What is the capital of Italy?", ("Rome",)),
    ("What is the capital of Japan?", ("Tokyo",)),
    ("What is the capital of Germany?", ("Berlin",)),
    ("What is the largest planet in our solar system?", ("Jupiter",)),
    ("Who wrote Romeo and Juliet?", ("Shakespeare",)),
    ("What is the chemical symbol of gold?", ("Au",)),
    ("What gas do plants take in for photosynthesis?", ("carbon dioxide", "CO2")),
    ("How many days are in a week?", ("seven", "7")),
    ("How many continents are there?", ("seven", "7")),
    ("What is 2 + 2?", ("four", "4")),
    ("What color is the sky on a clear day?", ("blue",)),
    ("At what temperature in degrees Celsius does water freeze?", ("zero", "0")),
    ("Which ocean is the largest?", ("Pacific",)),
    ("Which planet is closest to the Sun?", ("Mercury",)),
    ("What is the opposite of hot?", ("cold", "cool")),
)


@dataclass(frozen=True)
class Answer:
    """A model's answer to one question."""

    question: str
    text: str
    is_right: bool


def ask(execution: DecoderExecution, tokenizer: Tokenizer) -> list[Answer]:
    """Return greedy answers to all questions, by the tokenizer's chat template if it has one."""
    texts = [_greedy(execution, tokenizer, _prompt(tokenizer, question)) for question, _ in QUESTIONS]
    pairs = zip(QUESTIONS, texts, strict=True)
    return [Answer(question, text, holds_one_of(text, words)) for (question, words), text in pairs]


def holds_one_of(text: str, words: Sequence[str]) -> bool:
    """Whether one of the words is in a text, as a word, in small or capital letters."""
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in words)


def _prompt(tokenizer: Tokenizer, question: str) -> list[int]:
    if tokenizer.has_chat_template:
        return tokenizer.chat([{"role": "user", "content": question}])
    return tokenizer.encode(f"Question: {question}\nAnswer:")


def _greedy(execution: DecoderExecution, tokenizer: Tokenizer, prompt: Sequence[int]) -> str:
    """Return the most likely continuation, from an empty slot, with the prompt in chunks that the network takes."""
    size, cached, token, answer = execution.max_prefill_length, 0, 0, list[int]()
    chunks = [list(prompt[start : start + size]) for start in range(0, len(prompt), size)]
    while chunks:
        chunk = chunks.pop(0)
        call = Call(0, np.array([chunk], np.int64), np.array([cached], np.int64), np.array([len(chunk)], np.int64))
        logits = execution.forward(call)
        cached += len(chunk)
        if not chunks:
            token = int(logits.reshape(-1, logits.shape[-1])[-1].argmax())
            if token in tokenizer.eos_token_ids or len(answer) == _NEW_TOKENS:
                break
            answer.append(token)
            chunks = [[token]]
    return tokenizer.decode(answer).strip()
