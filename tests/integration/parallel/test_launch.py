"""Ranks that torchrun starts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from openai import OpenAI
from torch._C._distributed_c10d import HashStore

from tests.integration.parallel.test_engines import launch
from trtkit.bundle.bundle import open_bundle
from trtkit.errors import RequestError
from trtkit.llm.distributed import world
from trtkit.llm.execution import open_execution

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

PROMPT = ("the quick brown", "--no-chat", "--runtime", "reference", "--max-tokens", "8")


def test_torchrun_prints_what_one_process_prints(bundle_of: Callable[[str], Path], trtkit: Callable[..., Ran]) -> None:
    expected = trtkit("generate", bundle_of("one"), *PROMPT).out
    done = launch(2, "-m", "trtkit", "generate", str(bundle_of("tensor")), *PROMPT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == expected
    assert len(expected) > 8


@pytest.mark.slow
def test_ranks_that_torchrun_starts_are_served_as_one_model(bundle_of: Callable[[str], Path], tmp_path: Path) -> None:
    """As the pods of a LeaderWorkerSet do: rank 0 has the frontend, the other rank waits for its calls."""
    one = [sys.executable, "-m", "trtkit", "generate", str(bundle_of("one")), *PROMPT, "--temperature", "0"]
    expected = subprocess.run(one, check=True, capture_output=True, text=True).stdout.rstrip("\n")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    serve = ["trtkit", "serve", str(bundle_of("tensor")), "--name", "shared", "--json"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([*launcher, *serve], stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            client = OpenAI(base_url=url, api_key="none")
            answer = client.completions.create(model="shared", prompt=PROMPT[0], max_tokens=8, temperature=0)
            assert answer.choices[0].text == expected
        finally:
            server.terminate()
            assert server.wait(60) is not None


def test_another_number_of_ranks_is_refused(bundle_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RequestError) as error:
        open_execution(open_bundle(bundle_of("tensor")))
    assert str(error.value) == (
        "WORLD_SIZE: 3 ranks were launched; the bundle has 2\n"
        "fix: launch 2 ranks, or start the command without a launcher"
    )


def test_launched_ranks_serve_one_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    monkeypatch.setattr(world, "_rendezvous", lambda: (store, 0, 2))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert world.launched_world().host == "127.0.0.1"
    with pytest.raises(RequestError) as error:
        world.launched_world()
    assert str(error.value) == (
        "RANK: the launched ranks serve one bundle, which has been opened\n"
        "fix: open one bundle of several ranks, or start without a launcher: every bundle then starts its own ranks"
    )
