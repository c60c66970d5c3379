"""A real Dynamo frontend and two workers with a tiny chat model, shared by the folder's tests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.support.dynamo import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from openai import OpenAI

    from tests.support.dynamo import Served
    from trtkit import LLM


@pytest.fixture(scope="session")
def chat_bundle(tiny_folder: Path) -> Path:
    """The bundle of a tiny random Llama with a chat template, three slots and logits of all tokens."""
    return tiny_folder / "bundle"


@pytest.fixture(scope="session")
def served(chat_bundle: Path, hostile_folder: Path) -> Iterator[Served]:
    options = {"replicas": 2, "max_queue": 40, "hang_timeout_s": 8, "tool_call_parser": "hermes"}
    with contextlib.ExitStack() as stack:
        with contextlib.chdir(hostile_folder):  # only while its processes start
            running = stack.enter_context(serving(chat_bundle, **options))
        yield running


@pytest.fixture(scope="session")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder whose modules shadow those that servers import; each leaves a trace if it runs."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("uvloop", "torch", "dynamo", "trtkit", "uvicorn", "zmq", "msgspec", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(folder / name)!r}, 'w').close()")
    return folder


@pytest.fixture(scope="session")
def client(served: Served) -> OpenAI:
    return served.client()


@pytest.fixture(scope="session")
def local(chat_bundle: Path) -> Iterator[LLM]:
    """The same bundle in this process, without a server."""
    from trtkit import LLM

    with LLM(chat_bundle) as llm:
        yield llm
