"""A tiny chat model with its bundle, for the tests of commands that generate text; torch loads where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.runtime.text import Tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model as transformers saves it, and its bundle."""
    from tests.tiny_chat import build

    path = tmp_path_factory.mktemp("tiny")
    build(path)
    return path


@pytest.fixture
def tiny_bundle(tiny_folder: Path) -> Path:
    return tiny_folder / "bundle"


@pytest.fixture
def tiny_tokenizer(tiny_folder: Path) -> Tokenizer:
    from trtkit.runtime.text import open_tokenizer

    found = open_tokenizer(tiny_folder / "bundle/model")
    assert found is not None
    return found


@pytest.fixture
def greedy(tiny_folder: Path) -> Callable[[list[int], int], list[int]]:
    """transformers' greedy answer, its end token included."""
    import torch
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(tiny_folder / "model", dtype=torch.float32)

    def generate(ids: list[int], count: int) -> list[int]:
        every = {"attention_mask": torch.ones(1, len(ids)), "pad_token_id": 0}  # 0 is a token of the prompt too
        found = hf.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, **every)
        return [int(token) for token in found[0, len(ids) :]]

    return generate
