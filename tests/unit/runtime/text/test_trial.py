"""Patterns and chat templates that would not end, or would fill the memory, are refused before they run here."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import tiny_llm
from trtkit.errors import GenerationError
from trtkit.runtime.text import open_tokenizer, trial

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = [{"role": "user", "content": "hello"}]
HOSTILE = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "a long string": "{{ 'a' * 99999999999 }}",
    "a wide number": "{{ '%99999999999d' % 1 }}",
    "doubling": "{% set n = namespace(s='a') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer's folder; its child has three seconds."""
    monkeypatch.setattr(trial, "LIMIT_S", 3)
    tiny_llm.tokenizer().save_pretrained(tmp_path)
    return tmp_path


def with_pattern(folder: Path, pattern: str) -> Path:
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, data["pre_tokenizer"]]}
    file.write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_template_that_takes_too_much_is_refused(kind: str, folder: Path) -> None:
    for file in folder.glob("chat_template*"):
        file.unlink()
    (folder / "chat_template.jinja").write_text(HOSTILE[kind])
    tokenizer = open_tokenizer(folder)
    assert tokenizer is not None
    with pytest.raises(GenerationError, match="the chat template takes more than 3 s of CPU time or 6 GiB of memory"):
        tokenizer.chat(MESSAGES)


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|aa)+$"])
def test_a_pattern_that_backtracks_is_refused(pattern: str, folder: Path) -> None:
    with pytest.raises(GenerationError, match="the tokenizer's patterns take more than 3 s of CPU time"):
        open_tokenizer(with_pattern(folder, pattern))


def test_a_file_that_is_too_large_to_be_read_is_tried_too(folder: Path) -> None:
    with_pattern(folder, r"(a+)+$")
    with (folder / "tokenizer.json").open("a") as file:
        file.write(" " * (65 << 20))
    with pytest.raises(GenerationError, match="the tokenizer's patterns take more than 3 s of CPU time"):
        open_tokenizer(folder)


def test_patterns_of_known_tokenizers_and_others_that_end_are_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = open_tokenizer(with_pattern(folder, r"\d+| ?\w+"))
    assert unknown is not None
    assert unknown.encode("a 12")
    monkeypatch.setattr(trial, "_try", None)  # which would be called for an unknown pattern
    tiny_llm.tokenizer().save_pretrained(folder)
    known = sorted(trial.known_patterns())[0]
    assert open_tokenizer(with_pattern(folder, known)) is not None


def test_the_child_finds_what_only_this_process_has_on_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Triton's embedded Python, whose executable knows none of the environment's packages."""
    monkeypatch.setattr(sys, "executable", sys.base_prefix + "/bin/python3")
    tokenizer = open_tokenizer(folder)
    assert tokenizer is not None
    assert tokenizer.chat(MESSAGES)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    trial.try_template(folder)  # what was tried once is not tried again
    monkeypatch.setenv("TRTKIT_CACHE_DIR", str(folder / "cache"))
    with pytest.raises(GenerationError, match="could not be tried in a process of its own: no output"):
        trial.try_template(folder)


def test_a_sound_template_is_tried_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = open_tokenizer(folder)
    assert tokenizer is not None
    ids = tokenizer.chat(MESSAGES)
    monkeypatch.setattr("trtkit.runtime.text.tokenizer.try_template", None)
    assert tokenizer.chat(MESSAGES) == ids
