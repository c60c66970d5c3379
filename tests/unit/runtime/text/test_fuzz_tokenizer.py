"""Damaged tokenizer files end in one of our errors: never in another exception, a hang or much memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.fuzz import byte_changes, json_changes, must_end, text_of
from tests.unit.runtime.text.tokenizers import CHATML, byte_level
from trtkit.errors import GenerationError
from trtkit.runtime.text import open_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

GENERATION = {"eos_token_id": [2, 3], "bos_token_id": 1, "temperature": 0.5, "do_sample": True}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer's folder, whose patterns and template are not tried in a child first: `test_trial` does that."""
    for name in ("try_patterns", "try_template"):
        monkeypatch.setattr(f"trtkit.runtime.text.tokenizer.{name}", lambda _: None)
    byte_level(chat_template=CHATML).hf.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(GENERATION))
    use(tmp_path)
    return tmp_path


def use(folder: Path) -> None:
    """Do with a tokenizer what generation does."""
    tokenizer = open_tokenizer(folder)
    if tokenizer is None:
        return
    sizes = tokenizer.vocab_size, tokenizer.special_tokens, tokenizer.ids, tokenizer.bos_token_id
    tables = tokenizer.byte_level_table, tokenizer.byte_fallbacks, tokenizer.token_id("a")
    tokenizer.decode(tokenizer.encode("hello ab"))
    if tokenizer.has_chat_template:
        tokenizer.chat([{"role": "user", "content": "a"}])
    assert len(sizes) + len(tables) == 7


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_changed_files(name: str, folder: Path) -> None:
    data = (folder / name).read_bytes()
    for changed in json_changes(json.loads(data), 150):
        (folder / name).write_text(text_of(changed))
        must_end(lambda: use(folder), changed)
    for changed in byte_changes(data, 50):
        (folder / name).write_bytes(changed)
        must_end(lambda: use(folder), changed)


@pytest.mark.parametrize("value", ["x", [[2]], {"a": 2}])
def test_an_end_that_is_no_token_is_named(value: object, folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(GenerationError) as caught:
        open_tokenizer(folder)
    what = f"`eos_token_id` is `{value}`, not a token id or a list of them"
    assert str(caught.value) == f"{folder}/generation_config.json: {what}\nfix: build the bundle again"
