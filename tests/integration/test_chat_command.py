"""`trtkit chat` on a tiny model: its history, and its message when a cache is full."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from tests.support.tiny_chat import LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.conftest import Ran
    from trtkit.runtime.text import Tokenizer

    Run = Callable[..., Ran]


def chat(trtkit: Run, monkeypatch: pytest.MonkeyPatch, said: str, *words: Any) -> Ran:
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    return trtkit("chat", *words)


def test_a_conversation_remembers_what_was_said(
    tiny_bundle: Path, tiny_tokenizer: Tokenizer, greedy: Any, monkeypatch: pytest.MonkeyPatch, trtkit: Run
) -> None:
    messages: list[dict[str, str]] = []
    expected = []
    for text in ("a", "b"):
        messages.append({"role": "user", "content": text})
        answer = tiny_tokenizer.decode(greedy(tiny_tokenizer.chat(messages), 4))
        messages.append({"role": "assistant", "content": answer})
        expected.append(answer)
    ran = chat(trtkit, monkeypatch, "a\n\nb\n/reset\na\n/exit\nb\n", tiny_bundle, "--max-tokens", 4, "-q", "--stats")
    assert ran.code == 0
    assert ran.out == f"{expected[0]}\n{expected[1]}\n{expected[0]}\n"
    reused = [
        int(line.rpartition("tokens, ")[2].split(" ")[0]) for line in ran.err.splitlines() if "from cache" in line
    ]
    assert reused[1] > 16
    assert "conversation reset" in ran.err


def test_a_conversation_that_fills_the_cache_says_how_to_go_on(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, trtkit: Run
) -> None:
    said = f"{'a ' * LENGTH}\n/stats\n/what\x1b[2J\n/system b\n/help\na\n"
    ran = chat(trtkit, monkeypatch, said, tiny_bundle, "-q", "--choice", "yes")
    assert (ran.code, ran.out) == (0, "yes\n")
    assert ran.err.startswith(
        f"error: the conversation has 114 tokens with this line; a slot holds {LENGTH}\n"
        "fix: /reset starts a new one; or shorten the line\n"
        "no answer yet\n"
        "error: unknown command `/what\ufffd[2J`\nfix: /help shows the commands\n"
        "the system message is set; conversation reset\n"
        "/reset        start a new conversation\n"
    )
    long = chat(trtkit, monkeypatch, "a\n", tiny_bundle, "-q", "--max-tokens", 200, "--ignore-eos")
    assert long.err == f"(the cache is full, {LENGTH} tokens; /reset starts a new conversation)\n"
