"""The tutorials, as a newcomer follows them: every command runs and prints what the page shows."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.docs import DOCS, run_page

if TYPE_CHECKING:
    from pathlib import Path

TUTORIALS = DOCS / "tutorials"
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["vision", "hybrid"])
def test_a_tutorial_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    run_page(TUTORIALS / f"{name}.md", tmp_path)


def test_the_tutorials_on_a_language_model_and_on_serving_it_print_what_they_show(tmp_path: Path) -> None:
    """The second goes on with the bundle of the first."""
    run_page(TUTORIALS / "llm.md", tmp_path)
    http, grpc, metrics = _free_ports(3)
    start = f"trtkit serve models --http-port {http} --grpc-port {grpc} --metrics-port {metrics}"
    openai = f"trtkit serve bundles/llama --http-port {http}"
    changes = {
        "trtkit serve models": start,
        "trtkit serve bundles/llama": openai,
        ":8000": f":{http}",
        ":8001": f":{grpc}",
        ":8002": f":{metrics}",
    }
    printed = run_page(TUTORIALS / "serving.md", tmp_path, changes)
    assert '"text_output":" concept"' in printed  # the last piece of the stream


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at, all different."""
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return ports
