"""A real frontend of Dynamo's and two workers with a tiny chat model, shared by the folder's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dynamo import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openai import OpenAI

    from tests.dynamo import Served
    from trtkit import LLM


@pytest.fixture(scope="session")
def chat_bundle(tiny_folder: Path) -> Path:
    """The bundle of a tiny random Llama with a chat template, three slots, logits of every token."""
    return tiny_folder / "bundle"


@pytest.fixture(scope="session")
def served(chat_bundle: Path) -> Iterator[Served]:
    with serving(chat_bundle, replicas=2, max_queue=40, hang_timeout_s=8, tool_call_parser="hermes") as running:
        yield running


@pytest.fixture(scope="session")
def client(served: Served) -> OpenAI:
    return served.client()


@pytest.fixture(scope="session")
def local(chat_bundle: Path) -> Iterator[LLM]:
    """The same bundle in this process, without a server."""
    from trtkit import LLM

    with LLM(chat_bundle) as llm:
        yield llm
